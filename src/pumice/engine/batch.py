"""A schedule as the arrays that a step takes. All arrays are allocated once."""

from __future__ import annotations

import numpy as np

from pumice.engine.sequence import Sequence
from pumice.runtime.step import StepBatch, StepLimits


class BatchBuilder:
    """Writes int32 arrays at the limits' sizes and hands out views of what a step uses."""

    def __init__(self, limits: StepLimits) -> None:
        self._block_size = limits.block_size
        blocks = -(-limits.context_length // limits.block_size)
        self._tokens = np.zeros(limits.max_tokens, np.int32)
        self._positions = np.zeros(limits.max_tokens, np.int32)
        self._slots = np.zeros(limits.max_tokens, np.int32)
        self._query_start = np.zeros(limits.max_sequences + 1, np.int32)
        self._context = np.zeros(limits.max_sequences, np.int32)
        self._table = np.zeros((limits.max_sequences, blocks), np.int32)
        self._rows = np.zeros(limits.max_sequences, np.int32)

    def build(self, schedule: list[tuple[Sequence, int]]) -> tuple[StepBatch, list[Sequence]]:
        """The step's arrays, and the sequences whose last token is among them, in the order of their logits."""
        size = self._block_size
        total = rows = widest = 0
        sampled: list[Sequence] = []
        for index, (sequence, count) in enumerate(schedule):
            start, end = sequence.computed, sequence.computed + count
            blocks = sequence.blocks
            if count == 1:
                self._tokens[total] = sequence.tokens[start]
                self._positions[total] = start
                self._slots[total] = blocks[start // size] * size + start % size
            else:
                positions = np.arange(start, end, dtype=np.int32)
                self._tokens[total : total + count] = sequence.tokens[start:end]
                self._positions[total : total + count] = positions
                table = np.asarray(blocks, dtype=np.int32)
                self._slots[total : total + count] = table[positions // size] * size + positions % size
            self._query_start[index] = total
            self._context[index] = end
            used = -(-end // size)
            self._table[index, :used] = blocks[:used]
            widest = max(widest, used)
            total += count
            if end == len(sequence.tokens):
                self._rows[rows] = total - 1
                rows += 1
                sampled.append(sequence)
        n = len(schedule)
        self._query_start[n] = total
        batch = StepBatch(
            tokens=self._tokens[:total],
            positions=self._positions[:total],
            slots=self._slots[:total],
            query_start=self._query_start[: n + 1],
            context_len=self._context[:n],
            block_table=self._table[:n, : max(1, widest)],
            sample_rows=self._rows[:rows],
        )
        return batch, sampled
