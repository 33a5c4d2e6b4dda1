"""A simulated model for the engine's tests, and short ways to build and inspect an engine.

The logits of a row are a hash of the whole sequence, read back from the cache through the block
table, so a wrong slot, block or position changes the text or fails an assertion.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import text_helpers

from pumice.engine.engine import LLMEngine
from pumice.engine.request import Completion
from pumice.runtime.step import StepBatch, StepLimits
from pumice.text.tokenizer import Tokenizer

EOS = 2
GARBAGE = -7
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def tokenizer() -> Tokenizer:
    """Byte-level, about 700 tokens, one end token (2), with a template."""
    return Tokenizer.from_gguf_metadata(text_helpers.byte_level_metadata(chat_template=CHATML))


def logits_of(tokens: Sequence[int], vocab_size: int, eos_bias: float = 0.0) -> np.ndarray:
    """float32[V] after a sequence of token ids."""
    digest = hashlib.blake2b(np.asarray(tokens, dtype=np.int64).tobytes(), digest_size=8).digest()
    row = np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(vocab_size)
    row[EOS] += eos_bias
    return (3 * row).astype(np.float32)


def greedy_ids(
    prompt: Sequence[int], count: int, vocab_size: int, *, eos_bias: float = 0.0
) -> list[int]:
    """At most `count` tokens, the end token among them, without any engine."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + count:
        tokens.append(int(logits_of(tokens, vocab_size, eos_bias).argmax()))
        if tokens[-1] == EOS:
            break
    return tokens[len(prompt) :]


def limits(**changes: int) -> StepLimits:
    values = {
        "vocab_size": tokenizer().vocab_size,
        "max_tokens": 32,
        "max_sequences": 8,
        "max_rows": 8,
        "context_length": 64,
        "block_size": 4,
        "num_blocks": 64,
        **changes,
    }
    return StepLimits(**values)


class FakeExecutable:
    """Keeps (token, position) by slot. Every promise of `StepBatch` is asserted in every step.

    before: called with the step's number after the cache was written, before logits are returned;
    it may raise or wait. logits: replaces the hash. computed: tokens of all steps.
    """

    def __init__(
        self,
        limits: StepLimits,
        *,
        eos_bias: float = 0.0,
        logits: Callable[[list[int]], np.ndarray] | None = None,
    ) -> None:
        self.limits = limits
        self.before: Callable[[int], None] | None = None
        self.steps = self.computed = 0
        self.shapes: list[tuple[int, ...]] = []  # tokens of each sequence, step by step
        self._logits = logits or (lambda t: logits_of(t, limits.vocab_size, eos_bias))
        slots = limits.num_blocks * limits.block_size
        self._token = np.full(slots, GARBAGE, dtype=np.int64)
        self._position = np.full(slots, GARBAGE, dtype=np.int64)
        self._threads: set[int] = set()

    def step(self, batch: StepBatch) -> np.ndarray:
        self._threads.add(threading.get_ident())
        self._check_shapes(batch)
        sequences = len(batch.context_len)
        slots = [self._slots(batch, s) for s in range(sequences)]
        for s in range(sequences):
            self._check_sequence(batch, s, slots)
        for slot, token, position in zip(
            batch.slots.tolist(), batch.tokens.tolist(), batch.positions.tolist(), strict=True
        ):
            offset = slot % self.limits.block_size
            if offset == 0:  # a block is begun again: nothing of before may be read
                self._token[slot : slot + self.limits.block_size] = GARBAGE
                self._position[slot : slot + self.limits.block_size] = GARBAGE
            self._token[slot], self._position[slot] = token, position
        self.steps += 1
        self.computed += len(batch.tokens)
        self.shapes.append(tuple(np.diff(batch.query_start).tolist()))
        if self.before is not None:
            self.before(self.steps)
        rows = [self._row(batch, int(r), slots) for r in batch.sample_rows]
        empty = np.empty((0, self.limits.vocab_size), np.float32)
        return np.stack(rows) if rows else empty

    def _slots(self, batch: StepBatch, s: int) -> np.ndarray:
        """Slots of positions 0 … context_len - 1 by the block table."""
        size = self.limits.block_size
        where = np.arange(batch.context_len[s])
        return batch.block_table[s][where // size] * size + where % size

    def _check_shapes(self, batch: StepBatch) -> None:
        limits = self.limits
        for name in (
            "tokens", "positions", "slots", "query_start", "context_len", "sample_rows"
        ):  # fmt: skip
            array = getattr(batch, name)
            assert array.dtype == np.int32 and array.flags.c_contiguous, name
        assert batch.block_table.dtype == np.int32
        tokens, sequences = len(batch.tokens), len(batch.context_len)
        assert 0 < tokens <= limits.max_tokens and 0 < sequences <= limits.max_sequences
        assert len(batch.positions) == len(batch.slots) == tokens
        assert len(batch.block_table) == sequences and len(batch.query_start) == sequences + 1
        assert batch.query_start[0] == 0 and batch.query_start[-1] == tokens
        assert (np.diff(batch.query_start) > 0).all()
        assert len(batch.sample_rows) <= limits.max_rows
        assert (np.diff(batch.sample_rows) > 0).all()
        assert (0 <= batch.sample_rows).all() and (batch.sample_rows < tokens).all()
        assert (0 <= batch.tokens).all() and (batch.tokens < limits.vocab_size).all()
        assert (0 <= batch.block_table).all() and (batch.block_table < limits.num_blocks).all()
        assert len(set(batch.slots.tolist())) == tokens, "a slot is written twice"

    def _check_sequence(self, batch: StepBatch, s: int, slots: list[np.ndarray]) -> None:
        first, last = batch.query_start[s], batch.query_start[s + 1]
        context = int(batch.context_len[s])
        assert last - first <= context <= self.limits.context_length
        expected = np.arange(context - (last - first), context)
        assert (batch.positions[first:last] == expected).all(), "positions"
        assert (batch.slots[first:last] == slots[s][expected]).all(), "slots and block table"
        used = -(-context // self.limits.block_size)
        # Entries after these may hold blocks that are reserved for the rest of a prompt.
        assert len(set(batch.block_table[s][:used].tolist())) == used, "a block is there twice"
        for other in range(len(slots)):
            if other != s:
                written = set(batch.slots[first:last].tolist())
                assert written.isdisjoint(slots[other].tolist()), "writes into a shared block"

    def _row(self, batch: StepBatch, row: int, slots: list[np.ndarray]) -> np.ndarray:
        s = int(np.searchsorted(batch.query_start, row, side="right")) - 1
        where = slots[s][: batch.positions[row] + 1]
        assert (self._position[where] == np.arange(len(where))).all(), "cache content is lost"
        return self._logits(self._token[where].tolist())


def make(
    limits_: StepLimits | None = None, *, eos_bias: float = 0.0, logits: Any = None, **settings: Any
) -> tuple[LLMEngine, FakeExecutable]:
    """An engine on a fake. settings: `LLMEngine`'s."""
    fake = FakeExecutable(limits_ or limits(), eos_bias=eos_bias, logits=logits)
    return LLMEngine(fake, tokenizer(), **settings), fake


def check(engine: LLMEngine) -> None:
    """Every block is in one state, and owners are exactly the requests that are alive."""
    assert engine.audit() == []
    queued = [s.request_id for s in [*engine.scheduler.running, *engine.scheduler.waiting]]
    assert sorted(queued) == sorted(engine.alive)


def assert_idle(engine: LLMEngine) -> None:
    """Nothing runs and nothing is owned."""
    check(engine)
    assert not engine.has_work and engine.cache.available == engine.limits.num_blocks


def run_all(engine: LLMEngine, outputs: dict[str, Completion], most: int = 5000) -> None:
    """Steps until nothing is left; every delta's text is the output's text."""
    for _ in range(most):
        if not engine.has_work:
            return
        for delta in engine.step():
            if delta.completion is not None:
                outputs[delta.request_id] = delta.completion
        check(engine)
    raise AssertionError(f"still at work after {most} steps: {engine.alive}")
