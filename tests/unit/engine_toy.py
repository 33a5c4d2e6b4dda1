"""A toy language model on the step's contract, and short ways to build and inspect an engine.

The logits of a row are a function of what the cache holds at the slots that the block table names,
so a wrong slot, block or position changes the text or fails an assertion. Every batch is checked
against the contract.
"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from text_helpers import byte_level_metadata

from pumice.engine.engine import LLMEngine
from pumice.engine.request import Completion
from pumice.runtime.step import StepBatch, StepLimits
from pumice.text.tokenizer import Tokenizer

Model = Callable[[np.ndarray], np.ndarray]  # tokens[n] of a whole sequence → logits float32[V]
EOS = 2
GARBAGE = -7
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@functools.cache
def tokenizer(template: str | None = CHATML) -> Tokenizer:
    """Byte-level, about 700 tokens, one end token (2)."""
    more = {} if template is None else {"chat_template": template}
    return Tokenizer.from_gguf_metadata(byte_level_metadata(**more))


def plain_tokenizer() -> Tokenizer:
    """The same without a template."""
    return tokenizer(None)


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


def small_limits(**changes: int) -> StepLimits:
    """A vocabulary of 61, and half of everything."""
    values = {
        "vocab_size": 61, "max_tokens": 16, "max_sequences": 4, "max_rows": 4, "num_blocks": 32
    }  # fmt: skip
    return limits(**{**values, **changes})


def _hashed(tokens: Sequence[int] | np.ndarray, vocab_size: int) -> np.ndarray:
    digest = hashlib.blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little")).standard_normal(vocab_size)


def logits_of(
    tokens: Sequence[int] | np.ndarray, vocab_size: int, eos_bias: float = 0.0
) -> np.ndarray:
    """float32[V] after a sequence of token ids."""
    row = _hashed(tokens, vocab_size)
    row[EOS] += eos_bias
    return (3 * row).astype(np.float32)


def hashed_logits(vocab_size: int) -> Model:
    """Logits of one decimal, so that ties are common."""

    def model(tokens: np.ndarray) -> np.ndarray:
        return (_hashed(tokens, vocab_size) * 2).round(1).astype(np.float32)

    return model


def scripted(vocab_size: int, next_token: Callable[[list[int]], int]) -> Model:
    """A model that is sure of `next_token(tokens)`."""

    def model(tokens: np.ndarray) -> np.ndarray:
        logits = np.zeros(vocab_size, np.float32)
        logits[next_token(tokens.tolist())] = 30
        return logits

    return model


def greedy_reference(model: Model, prompt: Sequence[int], count: int) -> list[int]:
    """What a model says, one token after the other, without any engine."""
    tokens = list(prompt)
    for _ in range(count):
        logits = model(np.array(tokens)).tolist()
        tokens.append(max(range(len(logits)), key=lambda i: (logits[i], -i)))
    return tokens[len(prompt) :]


def greedy_ids(
    prompt: Sequence[int], count: int, vocab_size: int, *, eos_bias: float = 0.0
) -> list[int]:
    """At most `count` tokens of `logits_of`, the end token among them."""
    ids = greedy_reference(lambda t: logits_of(t, vocab_size, eos_bias), prompt, count)
    return ids[: ids.index(EOS) + 1] if EOS in ids else ids


class ToyExecutable:
    """Keeps (token, position) by slot. Every promise of `StepBatch` is asserted in every step.

    before: called with the step's number, from 1, after the cache was written and before logits are
    returned; it may raise or wait. steps: (T, S, R) of each. shapes: tokens of each sequence, step
    by step. computed: tokens of all steps.
    """

    def __init__(self, limits: StepLimits, model: Model | None = None) -> None:
        self.limits = limits
        self.model = model or hashed_logits(limits.vocab_size)
        self.before: Callable[[int], None] = lambda step: None
        self.steps: list[tuple[int, int, int]] = []
        self.shapes: list[tuple[int, ...]] = []
        self.computed = 0
        self.threads: set[int] = set()
        self.tokens = np.full(limits.num_blocks * limits.block_size, GARBAGE, np.int64)
        self.positions = np.full_like(self.tokens, GARBAGE)
        self._last = np.zeros(0, np.float32)

    def step(self, batch: StepBatch) -> np.ndarray:
        self.threads.add(threading.get_ident())
        self._last.fill(np.nan)  # the logits of the step before are no longer valid
        self._check_shapes(batch)
        slots = [self._slots(batch, s) for s in range(len(batch.context_len))]
        for s in range(len(slots)):
            self._check_sequence(batch, s, slots)
        size = self.limits.block_size
        for slot in batch.slots[batch.slots % size == 0].tolist():
            # A block is begun again: nothing of before may be read.
            self.tokens[slot : slot + size] = self.positions[slot : slot + size] = GARBAGE
        self.tokens[batch.slots] = batch.tokens
        self.positions[batch.slots] = batch.positions
        self.steps.append((len(batch.tokens), len(batch.context_len), len(batch.sample_rows)))
        self.shapes.append(tuple(np.diff(batch.query_start).tolist()))
        self.before(len(self.steps))
        self.computed += len(batch.tokens)
        rows = [self._row(batch, int(row), slots) for row in batch.sample_rows]
        self._last = np.array(rows, np.float32).reshape(-1, self.limits.vocab_size)
        return self._last

    def _slots(self, batch: StepBatch, s: int) -> np.ndarray:
        """Slots of positions 0 … context_len - 1 by the block table."""
        size = self.limits.block_size
        where = np.arange(batch.context_len[s])
        found: np.ndarray = batch.block_table[s][where // size] * size + where % size
        return found

    def _check_shapes(self, batch: StepBatch) -> None:
        limits = self.limits
        for name, array in vars(batch).items():
            assert array.dtype == np.int32 and array.flags.c_contiguous, name
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
        context, size = int(batch.context_len[s]), self.limits.block_size
        assert last - first <= context <= self.limits.context_length
        expected = np.arange(context - (last - first), context)
        assert (batch.positions[first:last] == expected).all(), "positions"
        assert (batch.slots[first:last] == slots[s][expected]).all(), "slots and block table"
        used, row = -(-context // size), batch.block_table[s]
        assert len(set(row[:used].tolist())) == used, "a block is there twice"
        assert not row[used:].any(), "unused entries must be 0"
        written = set((batch.slots[first:last] // size).tolist())
        for other in range(len(slots)):
            if other != s:
                blocks = set((slots[other] // size).tolist())
                assert written.isdisjoint(blocks), "writes into a shared block"

    def _row(self, batch: StepBatch, row: int, slots: list[np.ndarray]) -> np.ndarray:
        s = int(np.searchsorted(batch.query_start, row, side="right")) - 1
        where = slots[s][: batch.positions[row] + 1]
        assert (self.positions[where] == np.arange(len(where))).all(), "cache content is lost"
        return self.model(self.tokens[where])


class CopyingToy(ToyExecutable):
    """One that copies blocks."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        size = self.limits.block_size
        for source, target in pairs:
            for kept in (self.tokens, self.positions):
                kept[target * size :][:size] = kept[source * size :][:size]


def make(
    limits_: StepLimits | None = None,
    *,
    eos_bias: float = 0.0,
    logits: Model | None = None,
    copies: bool = False,
    **settings: Any,
) -> tuple[LLMEngine, ToyExecutable]:
    """An engine on a toy whose model is `logits_of`. settings: `LLMEngine`'s."""
    bounds = limits_ or limits()
    model = logits or (lambda t: logits_of(t, bounds.vocab_size, eos_bias))
    toy = (CopyingToy if copies else ToyExecutable)(bounds, model)
    return LLMEngine(toy, tokenizer(), **settings), toy


def check(engine: LLMEngine) -> None:
    """Every block is in one state, and what is queued are exactly the outputs that are alive."""
    assert engine.audit() == []
    queued = [*engine.scheduler.running, *engine.scheduler.waiting]
    queued += [s for lead in queued for s in lead.siblings]
    open_ = [s for group in engine._alive.values() for s in group.open]
    assert sorted(map(id, queued)) == sorted(map(id, open_))
    assert {s.request_id for s in queued} == set(engine.alive)
    ranks = [s.rank for s in engine.scheduler.running]
    assert ranks == sorted(ranks)


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
