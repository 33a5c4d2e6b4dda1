"""A toy language model on the step's contract.

Its logits are a hash of what the cache holds at the slots that the block table names, so a fault in
the bookkeeping changes the text. Every batch is checked against the contract.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from text_helpers import byte_level_metadata

from pumice.runtime.step import StepBatch, StepLimits
from pumice.text.tokenizer import Tokenizer

Model = Callable[[np.ndarray], np.ndarray]  # tokens[n] of a whole sequence → logits float32[V]


def limits(**changes: int) -> StepLimits:
    values = {
        "vocab_size": 61,
        "max_tokens": 16,
        "max_sequences": 4,
        "max_rows": 4,
        "context_length": 64,
        "block_size": 4,
        "num_blocks": 32,
    }
    return StepLimits(**{**values, **changes})


def hashed_logits(vocab_size: int) -> Model:
    """Logits of one decimal, so that ties are common."""

    def model(tokens: np.ndarray) -> np.ndarray:
        digest = hashlib.blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=8).digest()
        generator = np.random.default_rng(int.from_bytes(digest, "little"))
        return (generator.standard_normal(vocab_size) * 2).round(1).astype(np.float32)

    return model


def scripted(vocab_size: int, next_token: Callable[[list[int]], int]) -> Model:
    """A model that is sure of `next_token(tokens)`."""

    def model(tokens: np.ndarray) -> np.ndarray:
        logits = np.zeros(vocab_size, np.float32)
        logits[next_token(tokens.tolist())] = 30
        return logits

    return model


class ToyExecutable:
    def __init__(self, limits: StepLimits, model: Model | None = None) -> None:
        self.limits = limits
        self.model = model or hashed_logits(limits.vocab_size)
        self.tokens = np.full(limits.num_blocks * limits.block_size, -1, np.int64)
        self.positions = np.full_like(self.tokens, -1)
        self.steps: list[tuple[int, int, int]] = []  # T, S, R
        self.computed = 0
        self.fail: Callable[[int], BaseException | None] = lambda step: None
        self._last = np.zeros(0, np.float32)

    def step(self, batch: StepBatch) -> np.ndarray:
        self._last.fill(np.nan)  # the logits of the step before are no longer valid
        self._check(batch)
        self.steps.append((len(batch.tokens), len(batch.context_len), len(batch.sample_rows)))
        error = self.fail(len(self.steps) - 1)
        self.tokens[batch.slots] = batch.tokens
        self.positions[batch.slots] = batch.positions
        if error is not None:
            raise error
        self.computed += len(batch.tokens)
        rows = [self._logits(batch, int(row)) for row in batch.sample_rows]
        self._last = np.array(rows, np.float32).reshape(-1, self.limits.vocab_size)
        return self._last

    def _logits(self, batch: StepBatch, row: int) -> np.ndarray:
        sequence = int(np.searchsorted(batch.query_start, row, side="right")) - 1
        at = np.arange(int(batch.positions[row]) + 1)
        size = self.limits.block_size
        slots = batch.block_table[sequence, at // size] * size + at % size
        assert (self.positions[slots] == at).all(), "the table leads to other positions"
        return self.model(self.tokens[slots])

    def _check(self, batch: StepBatch) -> None:
        bounds = self.limits
        for name, array in vars(batch).items():
            assert array.dtype == np.int32, name
            assert array.flags.c_contiguous, name
        count, sequences = len(batch.tokens), len(batch.context_len)
        assert 0 < count <= bounds.max_tokens
        assert 0 < sequences <= bounds.max_sequences
        assert len(batch.sample_rows) <= bounds.max_rows
        assert len(batch.positions) == len(batch.slots) == count
        assert batch.query_start[0] == 0 and batch.query_start[-1] == count
        assert (np.diff(batch.query_start) > 0).all()
        assert len(batch.query_start) == sequences + 1 == len(batch.block_table) + 1
        assert (batch.context_len <= bounds.context_length).all()
        assert len(set(batch.slots.tolist())) == count, "a slot is written twice"
        size = bounds.block_size
        used = []
        for s in range(sequences):
            first, last = batch.query_start[s : s + 2]
            end = batch.context_len[s]
            positions = np.arange(end - (last - first), end)
            assert (batch.positions[first:last] == positions).all()
            row = batch.block_table[s]
            assert (row >= 0).all() and (row < bounds.num_blocks).all()
            assert (
                batch.slots[first:last] == row[positions // size] * size + positions % size
            ).all()
            blocks = row[: -(-end // size)].tolist()
            assert len(set(blocks)) == len(blocks), "a sequence holds a block twice"
            assert not row[len(blocks) :].any(), "unused entries must be 0"
            used.append((set(blocks), set((batch.slots[first:last] // size).tolist())))
        for s, (_, written) in enumerate(used):
            for other, (blocks, _) in enumerate(used):
                assert s == other or not written & blocks, "a shared block is written"


def greedy_reference(model: Model, prompt: Sequence[int], count: int) -> list[int]:
    """What a model says, one token after the other, without any engine."""
    tokens = list(prompt)
    for _ in range(count):
        logits = model(np.array(tokens)).tolist()
        tokens.append(max(range(len(logits)), key=lambda i: (logits[i], -i)))
    return tokens[len(prompt) :]


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf_metadata(byte_level_metadata())
