"""From a plan to the arrays of a step. They are made once; a step writes what has changed."""

from __future__ import annotations

import dataclasses

import numpy as np

from pumice.engine.plan import StepPlan
from pumice.engine.sequence import Sequence
from pumice.runtime.step import StepBatch, StepLimits


class BatchBuilder:
    """Builds one batch at a time: it is valid until the next `build`."""

    def __init__(self, limits: StepLimits) -> None:
        size = limits.block_size
        columns = -(-limits.context_length // size)
        sequences = limits.max_sequences
        self._block_size = size
        self._tokens = np.zeros(limits.max_tokens, dtype=np.int32)
        self._positions = np.zeros(limits.max_tokens, dtype=np.int32)
        self._slots = np.zeros(limits.max_tokens, dtype=np.int32)
        self._query_start = np.zeros(sequences + 1, dtype=np.int32)
        self._context_len = np.zeros(sequences, dtype=np.int32)
        self._table = np.zeros((sequences, columns), dtype=np.int32)
        self._sample_rows = np.zeros(limits.max_rows, dtype=np.int32)
        self._every_row = np.arange(limits.max_tokens, dtype=np.int32)
        self._all_positions = np.arange(limits.context_length, dtype=np.int32)
        self._versions = [0] * sequences  # Sequence.table_version that a row of the table shows
        self._filled = [0] * sequences  # its entries
        self._shape = (-1, -1, -1)
        self._batch: StepBatch

    def build(self, plan: StepPlan) -> StepBatch:
        """The batch of a plan, with the rows of logits that `StepPlan.sampled` tells."""
        size = self._block_size
        tokens, positions, slots = self._tokens, self._positions, self._slots
        at = rows = 0
        for index, sequence in enumerate(plan.sequences):
            count, start, blocks = plan.counts[index], sequence.computed, sequence.blocks
            end, draft = start + count, plan.drafts[index]
            if count == 1:
                tokens[at] = sequence.last if end == sequence.length else sequence.tokens[start]
                positions[at] = start
                slots[at] = blocks[start // size] * size + start % size
            else:
                where = self._all_positions[start:end]
                tokens[at : at + count] = sequence.tokens[start:end]
                positions[at : at + count] = where
                first = start // size
                touched = np.array(blocks[first : (end - 1) // size + 1], dtype=np.int32)
                slots[at : at + count] = touched[where // size - first] * size + where % size
            at += count
            self._query_start[index + 1] = at
            self._context_len[index] = end
            if end == sequence.length + draft:
                self._sample_rows[rows : rows + 1 + draft] = range(at - 1 - draft, at)
                rows += 1 + draft
            used = (end - 1) // size + 1  # blocks for the rest of a prompt are not the step's
            if self._versions[index] != sequence.table_version or self._filled[index] != used:
                self._write_row(index, sequence.table_version, blocks[:used])
        if self._shape != (at, len(plan.sequences), rows):
            self._view(at, len(plan.sequences), rows)
        return self._batch

    def build_ahead(self, sequences: list[Sequence]) -> StepBatch:
        """The batch of the token after each sequence's last, which only the device knows (0 here).
        There must be room for it.
        """
        size = self._block_size
        for at, sequence in enumerate(sequences):
            start, blocks = sequence.length, sequence.blocks
            self._tokens[at] = 0
            self._positions[at] = start
            self._slots[at] = blocks[start // size] * size + start % size
            self._query_start[at + 1] = at + 1
            self._context_len[at] = start + 1
            self._sample_rows[at] = at
            used = start // size + 1
            if self._versions[at] != sequence.table_version or self._filled[at] != used:
                self._write_row(at, sequence.table_version, blocks[:used])
        count = len(sequences)
        if self._shape != (count, count, count):
            self._view(count, count, count)
        return self._batch

    def build_embedding(self, plan: StepPlan) -> StepBatch:
        """The batch of a plan, with the row of every token."""
        batch = self.build(plan)
        return dataclasses.replace(batch, sample_rows=self._every_row[: len(batch.tokens)])

    def _write_row(self, index: int, version: int, blocks: list[int]) -> None:
        row, filled = self._table[index], self._filled[index]
        if version == self._versions[index] and filled < len(blocks):
            row[filled : len(blocks)] = blocks[filled:]
        else:
            row[: len(blocks)] = blocks
            row[len(blocks) : filled] = 0
        self._versions[index], self._filled[index] = version, len(blocks)

    def _view(self, tokens: int, sequences: int, rows: int) -> None:
        self._shape = (tokens, sequences, rows)
        self._batch = StepBatch(
            tokens=self._tokens[:tokens],
            positions=self._positions[:tokens],
            slots=self._slots[:tokens],
            query_start=self._query_start[: sequences + 1],
            context_len=self._context_len[:sequences],
            block_table=self._table[:sequences],
            sample_rows=self._sample_rows[:rows],
        )
