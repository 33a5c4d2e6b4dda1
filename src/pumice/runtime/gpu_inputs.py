"""A step's seven integer arrays in one piece of memory: one copy takes them to the device."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from pumice.runtime.gpu_plans import PlanShape
from pumice.runtime.step import StepBatch

ALIGNMENT = 256  # bytes: kernels may assume 16 of every pointer


class PackedInputs:
    """Where a plan's inputs lie: `offsets` and `nbytes`, in bytes.

    All are int32: tokens[T] positions[T] slots[T] query_start[S+1] context_len[S]
    block_table[S, M] sample_rows[R], of the plan's T, S, M and R.
    """

    def __init__(self, shape: PlanShape) -> None:
        self.shape = shape
        self._shapes: Mapping[str, tuple[int, ...]] = {
            "tokens": (shape.tokens,),
            "positions": (shape.tokens,),
            "slots": (shape.tokens,),
            "query_start": (shape.sequences + 1,),
            "context_len": (shape.sequences,),
            "block_table": (shape.sequences, shape.blocks),
            "sample_rows": (shape.rows,),
        }
        self.offsets: dict[str, int] = {}
        end = 0
        for name, size in self._shapes.items():
            self.offsets[name] = end
            end += -(-4 * int(np.prod(size)) // ALIGNMENT) * ALIGNMENT
        self.nbytes = end

    def views(self, memory: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[np.int32]]:
        """The arrays in `memory`, uint8[≥ nbytes]."""
        found = {}
        for name, size in self._shapes.items():
            begin = self.offsets[name]
            flat = memory[begin : begin + 4 * int(np.prod(size))]
            found[name] = flat.view(np.int32).reshape(size)
        return found


def write_batch(views: Mapping[str, npt.NDArray[np.int32]], batch: StepBatch) -> None:
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
    table[:sequences, columns:] = 0
    table[sequences:] = 0


def _fill(view: npt.NDArray[np.int32], values: npt.NDArray[np.int32], rest: int) -> None:
    view[: len(values)] = values
    view[len(values) :] = rest
