"""Times a loaded model: prompts and single-token steps of one sequence, on the executor and
nothing above it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pumice.artifact import Manifest
from pumice.bench.costs import Cost, PlanCosts
from pumice.bench.roofline import Roofline
from pumice.bench.tests import ModelTest
from pumice.errors import ContextLengthError, DeviceError
from pumice.runtime.step import Executable, StepBatch, StepLimits

_STRIDE = 7919


def token_ids(vocab_size: int, count: int, start: int = 0) -> np.ndarray:
    """Real tokens, the same in every run and every engine: int32[count] from the vocabulary's
    middle at a fixed stride.
    """
    index = np.arange(start, start + count, dtype=np.int64)
    return ((vocab_size // 3 + _STRIDE * index) % vocab_size).astype(np.int32)


class Sequence:
    """One sequence in blocks 0, 1, 2 … of the cache. Its arrays are made once, so that a timed
    step builds nothing large.
    """

    def __init__(self, limits: StepLimits) -> None:
        self.limits = limits
        blocks = -(-limits.context_length // limits.block_size)
        self._table = np.arange(blocks, dtype=np.int32).reshape(1, -1)
        self._positions = np.arange(limits.context_length, dtype=np.int32)
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
            slots=positions,  # blocks are in order, so a slot is a position
            query_start=np.array([0, count], dtype=np.int32),
            context_len=np.array([end], dtype=np.int32),
            block_table=self._table[:, :columns],
            sample_rows=rows,
        )


@dataclass(frozen=True)
class TestResult:
    """runs: tokens per second of each repetition."""

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
        return self.cost.nbytes / self.test.tokens

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_per_token * self.median

    @property
    def operations_per_s(self) -> float:
        return self.cost.operations / self.test.tokens * self.median

    @property
    def roofline_fraction(self) -> float:
        """Least possible time over median time."""
        return self.least_seconds * self.median / self.test.tokens


def check_context(tests: list[ModelTest], manifest: Manifest) -> None:
    """The context that the tests need; ContextLengthError names both sizes when the model has
    less.
    """
    need = max(test.context for test in tests)
    if need > manifest.model.context_length:
        longest = max(tests, key=lambda t: t.context)
        raise ContextLengthError(
            f"{longest.name} needs a context of {need:,} tokens; {manifest.model.name} has "
            f"{manifest.model.context_length:,}"
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
        if last and not np.isfinite(logits).all():
            raise DeviceError(f"the logits at position {start + count - 1} are not finite")


def _generate(executor: Executable, sequence: Sequence, start: int, count: int) -> None:
    ids = token_ids(executor.limits.vocab_size, count)
    for i in range(count):
        executor.step(sequence.batch(ids[i : i + 1], start + i))


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
    sequence = Sequence(executor.limits)
    if test.depth:
        _feed(executor, sequence, 0, test.depth)
    runs = []
    for index in range(repeat + 1):
        if test.kind == "tg":
            _feed(executor, sequence, test.depth, 1)
            start = time.perf_counter()
            _generate(executor, sequence, test.depth + 1, test.tokens)
        else:
            start = time.perf_counter()
            _feed(executor, sequence, test.depth, test.tokens)
        seconds = time.perf_counter() - start
        if index:
            runs.append(test.tokens / seconds)
        if progress is not None:
            progress(index)
    total, steps = PlanCosts(manifest).test(test, executor.limits.max_tokens)
    least = sum(step.seconds(roofline) for step in steps) if roofline is not None else 0.0
    return TestResult(test, tuple(runs), total, least)
