"""A step's small arrays in one piece of memory: one copy takes them to the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pumice.runtime.gpu_plans import PlanShape
from pumice.runtime.step import RowSampling, StepBatch

ALIGNMENT = 256  # bytes: kernels may assume 16 of every pointer
Views = Mapping[str, npt.NDArray[np.generic]]
# What fills the rows of `RowSampling` up.
_SAMPLING = {
    "temperature": ("float32", 0), "seeds": ("int64", 0), "draws": ("int32", 0),
    "top_k": ("int32", 0), "top_p": ("float32", 1), "min_p": ("float32", 0),
}  # fmt: skip


class PackedInputs:
    """Where a plan's inputs lie: `offsets`, in bytes.

    First the step's, `step_nbytes` in all: int32 tokens[T] positions[T] slots[T] query_start[S+1]
    context_len[S] block_table[S, M] sample_rows[R] of the plan's T, S, M and R. Then those of
    `RowSampling`, up to `nbytes`.
    """

    def __init__(self, shape: PlanShape) -> None:
        self.shape = shape
        self._arrays: dict[str, tuple[tuple[int, ...], str]] = {
            "tokens": ((shape.tokens,), "int32"),
            "positions": ((shape.tokens,), "int32"),
            "slots": ((shape.tokens,), "int32"),
            "query_start": ((shape.sequences + 1,), "int32"),
            "context_len": ((shape.sequences,), "int32"),
            "block_table": ((shape.sequences, shape.blocks), "int32"),
            "sample_rows": ((shape.rows,), "int32"),
        }
        self.offsets: dict[str, int] = {}
        self.step_nbytes = self._lay_out(self._arrays, 0)
        sampling = {name: ((shape.rows,), dtype) for name, (dtype, _) in _SAMPLING.items()}
        self.nbytes = self._lay_out(sampling, self.step_nbytes)
        self._arrays |= sampling

    def _lay_out(self, arrays: Mapping[str, tuple[tuple[int, ...], str]], end: int) -> int:
        for name, (size, dtype) in arrays.items():
            self.offsets[name] = end
            nbytes = int(np.prod(size)) * np.dtype(dtype).itemsize
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return end

    def views(self, memory: npt.NDArray[np.uint8]) -> Views:
        """The arrays in `memory`, uint8[≥ nbytes]."""
        found: dict[str, npt.NDArray[np.generic]] = {}
        for name, (size, dtype) in self._arrays.items():
            begin = self.offsets[name]
            flat = memory[begin : begin + int(np.prod(size)) * np.dtype(dtype).itemsize]
            found[name] = flat.view(dtype).reshape(size)
        return found


def write_batch(views: Views, batch: StepBatch) -> None:
    """A batch into a plan's arrays, and what fills them up: tokens 0 at slot −1, which write
    nothing, and sequences without tokens or context.
    """
    tokens, sequences = len(batch.tokens), len(batch.context_len)
    _fill(views["tokens"], batch.tokens, 0)
    _fill(views["positions"], batch.positions, 0)
    _fill(views["slots"], batch.slots, -1)
    _fill(views["query_start"], batch.query_start, tokens)
    _fill(views["context_len"], batch.context_len, 0)
    _fill(views["sample_rows"], batch.sample_rows, 0)
    table = views["block_table"]
    columns = min(table.shape[1], batch.block_table.shape[1])
    table[:sequences, :columns] = batch.block_table[:, :columns]
    if columns < table.shape[1]:
        table[:sequences, columns:] = 0
    if sequences < len(table):
        table[sequences:] = 0


def write_sampling(views: Views, sampling: RowSampling) -> None:
    """How rows are drawn from; what fills up is greedy."""
    for name, (_, rest) in _SAMPLING.items():
        _fill(views[name], getattr(sampling, name), rest)


def _fill(view: npt.NDArray[np.generic], values: npt.NDArray[np.generic], rest: int) -> None:
    count = len(values)
    if count == len(view):
        view[:] = values
    else:
        view[:count] = values
        view[count:] = rest
