"""Times a loaded model: prompts of one sequence, and single-token steps of one or several, on the
executor and nothing above it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from pumice.artifact import Manifest
from pumice.bench.costs import Cost, PlanCosts
from pumice.bench.roofline import Roofline
from pumice.bench.tests import ModelTest
from pumice.errors import ContextLengthError, DeviceError, UsageError
from pumice.runtime.step import (
    Executable,
    RowSampling,
    SampledStep,
    SamplingExecutable,
    StepBatch,
    StepLimits,
)

_STRIDE = 7919


def token_ids(vocab_size: int, count: int, start: int = 0) -> np.ndarray:
    """Real tokens, the same in every run and every engine: int32[count] from the vocabulary's
    middle at a fixed stride.
    """
    index = np.arange(start, start + count, dtype=np.int64)
    return ((vocab_size // 3 + _STRIDE * index) % vocab_size).astype(np.int32)


class Sequence:
    """One sequence in blocks of the cache that follow each other: number `index` of such, each of
    `context` tokens at most. Its arrays are made once, so that a timed step builds nothing large.
    """

    def __init__(self, limits: StepLimits, index: int = 0, context: int | None = None) -> None:
        self.limits = limits
        context = context or limits.context_length
        blocks = -(-context // limits.block_size)
        first = index * blocks
        if first + blocks > max(limits.num_blocks, blocks):
            raise UsageError(
                f"{index + 1} sequences of {context:,} tokens need {first + blocks:,} blocks of "
                f"the cache; it has {limits.num_blocks:,}"
            )
        self._table = np.arange(first, first + blocks, dtype=np.int32).reshape(1, -1)
        self._positions = np.arange(context, dtype=np.int32)
        self._slots = self._positions + np.int32(first * limits.block_size)
        self._one = np.zeros(1, dtype=np.int32)
        self._none = np.zeros(0, dtype=np.int32)

    def batch(self, tokens: np.ndarray, position: int, *, logits: bool = True) -> StepBatch:
        """A step that puts `tokens` at `position` …; logits of the last one when asked for."""
        count = len(tokens)
        end = position + count
        positions = self._positions[position:end]
        columns = -(-end // self.limits.block_size)
        rows = (
            (self._one if count == 1 else np.array([count - 1], dtype=np.int32))
            if logits
            else self._none
        )
        return StepBatch(
            tokens=tokens,
            positions=positions,
            slots=self._slots[position:end],  # blocks are in order
            query_start=np.array([0, count], dtype=np.int32),
            context_len=np.array([end], dtype=np.int32),
            block_table=self._table[:, :columns],
            sample_rows=rows,
        )


class Together:
    """Steps of one token of every sequence, each at the same position."""

    def __init__(self, sequences: list[Sequence]) -> None:
        self._size = sequences[0].limits.block_size
        self._table = np.concatenate([sequence._table for sequence in sequences])
        self._first = self._table[:, :1].ravel() * np.int32(self._size)
        self._start = np.arange(len(sequences) + 1, dtype=np.int32)

    def batch(self, tokens: np.ndarray, position: int) -> StepBatch:
        """tokens: one of each sequence."""
        count = len(tokens)
        return StepBatch(
            tokens=tokens,
            positions=np.full(count, position, dtype=np.int32),
            slots=self._first + np.int32(position),
            query_start=self._start,
            context_len=np.full(count, position + 1, dtype=np.int32),
            block_table=self._table[:, : position // self._size + 1],
            sample_rows=self._start[:-1],
        )


@dataclass(frozen=True)
class TestResult:
    """runs: tokens per second of each repetition, of all sequences together."""

    __test__ = False  # not a test of pytest's

    test: ModelTest
    runs: tuple[float, ...]
    cost: Cost
    least_seconds: float  # at the roofline; 0 when none was measured

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.runs)

    @property
    def deviation(self) -> float:
        """Sample standard deviation; 0 for one run."""
        return statistics.stdev(self.runs) if len(self.runs) > 1 else 0.0

    @property
    def bytes_per_token(self) -> float:
        """A token of a batch has its part of what the step reads."""
        return self.cost.nbytes / self.test.all_tokens

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_per_token * self.median

    @property
    def operations_per_s(self) -> float:
        return self.cost.operations / self.test.all_tokens * self.median

    @property
    def roofline_fraction(self) -> float:
        """Least possible time over median time."""
        return self.least_seconds * self.median / self.test.all_tokens


def check_context(tests: list[ModelTest], manifest: Manifest) -> None:
    """The context and the sequences that the tests need, before anything is loaded.

    ContextLengthError names both sizes when the model has less, UsageError when no plan of the
    artifact holds so many sequences.
    """
    need = max(test.context for test in tests)
    if need > manifest.model.context_length:
        longest = max(tests, key=lambda t: t.context)
        raise ContextLengthError(
            f"{longest.name} needs a context of {need:,} tokens; {manifest.model.name} has "
            f"{manifest.model.context_length:,}"
        )
    most = max((plan.bounds.get("S", 0) for plan in manifest.entries.values()), default=0)
    largest = max(tests, key=lambda t: t.batch)
    if largest.batch > most:
        raise UsageError(
            f"{largest.name} needs {largest.batch:,} sequences at once; the artifact of "
            f"{manifest.model.name} was compiled for {most:,}",
            hint=f"Compile it with --max-sequences {largest.batch}, or measure the model itself.",
        )


def _feed(executor: Executable, sequence: Sequence, start: int, count: int) -> None:
    """Puts `count` tokens in the cache from position `start` on, in the largest steps; logits of
    the last one.
    """
    ids = token_ids(executor.limits.vocab_size, count, start)
    size = executor.limits.max_tokens
    for first in range(0, count, size):
        part = ids[first : first + size]
        last = first + len(part) == count
        logits = executor.step(sequence.batch(part, start + first, logits=last))
        if last:
            _finite(logits, start + count - 1)


def _generate(
    executor: Executable, sequences: Sequence | Together, batch: int, start: int, count: int
) -> None:
    """`count` steps of `batch` tokens from position `start` on. An executable that draws tokens
    itself continues with its own, the likeliest, and a step is launched before the tokens of the
    one before it are read; else the tokens are given.
    """
    ids = token_ids(executor.limits.vocab_size, count * batch)
    if getattr(executor, "samples", False):
        _draw(cast(SamplingExecutable, executor), sequences, ids[:batch], start, count)
        return
    for i in range(count):
        logits = executor.step(sequences.batch(ids[i * batch : (i + 1) * batch], start + i))
        if i == count - 1:
            _finite(logits, start + i)


def _draw(
    executor: SamplingExecutable, sequences: Sequence | Together, first: np.ndarray, start: int,
    count: int,
) -> None:  # fmt: skip
    rows = np.arange(len(first), dtype=np.int32)
    likeliest, before = greedy_rows(len(first)), None
    for i in range(count):
        batch = sequences.batch(first, start + i)
        step = executor.launch(batch, likeliest, rows if i else None)
        if before is not None:
            _drawn(before, start + i - 1)
        before = step
    if before is not None:
        _drawn(before, start + count - 1)


def _drawn(step: SampledStep, position: int) -> None:
    if (step.tokens() < 0).any():
        raise DeviceError(f"the logits at position {position} are not finite")


def greedy_rows(count: int) -> RowSampling:
    """The likeliest token of each row."""
    zeros = np.zeros(count, np.int32)
    return RowSampling(
        temperature=np.zeros(count, np.float32),
        seeds=np.zeros(count, np.int64),
        draws=zeros,
        top_k=zeros,
        top_p=np.ones(count, np.float32),
        min_p=np.zeros(count, np.float32),
    )


def _finite(logits: np.ndarray, position: int) -> None:
    if not np.isfinite(logits).all():
        raise DeviceError(f"the logits at position {position} are not finite")


def run_test(
    executor: Executable,
    manifest: Manifest,
    test: ModelTest,
    *,
    repeat: int,
    roofline: Roofline | None = None,
    progress: Callable[[int], None] | None = None,
) -> TestResult:
    """Times a test `repeat` times after a run that is not counted."""
    sequences = [Sequence(executor.limits, i, test.context) for i in range(test.batch)]
    together = sequences[0] if test.batch == 1 else Together(sequences)
    for sequence in sequences if test.depth else ():
        _feed(executor, sequence, 0, test.depth)
    runs = []
    for index in range(repeat + 1):
        if test.kind == "tg":
            _generate(executor, together, test.batch, test.depth, 1)
            start = time.perf_counter()
            _generate(executor, together, test.batch, test.depth + 1, test.tokens)
        else:
            start = time.perf_counter()
            for sequence in sequences:
                _feed(executor, sequence, test.depth, test.tokens)
        seconds = time.perf_counter() - start
        if index:
            runs.append(test.all_tokens / seconds)
        if progress is not None:
            progress(index)
    total, steps = PlanCosts(manifest).test(test, executor.limits.max_tokens)
    least = sum(step.seconds(roofline) for step in steps) if roofline is not None else 0.0
    return TestResult(test, tuple(runs), total, least)
