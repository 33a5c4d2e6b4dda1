"""Compiles a model for this CPU, or an emulated GPU, and runs it through the step's contract, as an
engine would, with block tables out of order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pumice.compiler.compile import CompileOptions, compile_model
from pumice.runtime.load import load
from pumice.runtime.step import StepBatch
from pumice.targets import get_target
from pumice.targets.detect import detect_cpu


class Compiled:
    """`extend(sequence, tokens)` appends tokens to a sequence and returns the logits of all of
    them, or of as many as the artifact's steps give."""

    def __init__(
        self,
        source: Path | str,
        folder: Path,
        *,
        context: int,
        seed: int = 0,
        emulated: str = "",
        sanitize: bool = False,
        **options: Any,
    ) -> None:
        target = get_target(emulated) if emulated else detect_cpu()
        if emulated:  # so few kernels are compiled here before other processes have started
            options.setdefault("workers", 1)
        compile_model(source, target=target, output=folder, options=CompileOptions(**options))
        self.size = options.get("block_size", 32)
        each = -(-context // self.size)
        kind = "sanitized" if sanitize else "emulated"
        device = f"rocm:{kind}-{emulated}" if emulated else "cpu"
        self.executor = load(folder, device=device, num_blocks=8 * each, context_length=context)
        self._free = list(np.random.default_rng(seed).permutation(8 * each))
        self._blocks: dict[int, list[int]] = {}
        self._length: dict[int, int] = {}

    def extend_many(
        self, parts: dict[int, list[int]], *, embed: bool = False
    ) -> dict[int, np.ndarray]:
        """One ragged step: sequence → its new tokens; returns logits [tokens, V] of each, or with
        `embed` hidden states [tokens, H]."""
        tokens: list[int] = []
        positions, slots, start, context, tables = [], [], [0], [], []
        for sequence, new in parts.items():
            blocks = self._blocks.setdefault(sequence, [])
            before = self._length.get(sequence, 0)
            for position in range(before, before + len(new)):
                if position // self.size == len(blocks):
                    blocks.append(int(self._free.pop()))
                positions.append(position)
                slots.append(blocks[position // self.size] * self.size + position % self.size)
            self._length[sequence] = before + len(new)
            tokens += new
            start.append(len(tokens))
            context.append(before + len(new))
            tables.append(blocks)
        table = np.zeros((len(parts), max(map(len, tables))), np.int32)
        for row, blocks in zip(table, tables, strict=True):
            row[: len(blocks)] = blocks

        def array(values: Any) -> np.ndarray:
            return np.asarray(values, dtype=np.int32)

        limit = len(tokens) if embed else self.executor.limits.max_rows
        rows = np.arange(max(0, len(tokens) - limit), len(tokens), dtype=np.int32)
        run = self.executor.embed if embed else self.executor.step
        logits = run(
            StepBatch(
                array(tokens),
                array(positions),
                array(slots),
                array(start),
                array(context),
                table,
                rows,
            )
        ).copy()
        first = int(rows[0])  # a step may have fewer rows than tokens: those of the last ones
        return {
            s: logits[max(0, a - first) : max(0, b - first)]
            for s, a, b in zip(parts, start, start[1:], strict=False)
        }

    def extend(self, tokens: list[int], sequence: int = 0) -> np.ndarray:
        return self.extend_many({sequence: tokens})[sequence]


def error(actual: np.ndarray, expected: np.ndarray) -> float:
    """‖actual − expected‖ / ‖expected‖."""
    assert np.isfinite(actual).all()
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))
