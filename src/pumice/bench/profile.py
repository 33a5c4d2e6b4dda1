"""Where a step's time goes, kernel by kernel."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pumice.artifact import FILL
from pumice.bench.costs import Cost, PlanCosts
from pumice.bench.model import Sequence as TokenSequence
from pumice.bench.model import Together, token_ids
from pumice.bench.roofline import Roofline
from pumice.bench.tests import ModelTest
from pumice.files import storage_error
from pumice.runtime.gpu_executor import GpuExecutor
from pumice.runtime.load import Loaded

_PASSES = 7
_LAYER = re.compile(r"\.\d+\.")


@dataclass(frozen=True)
class KernelTime:
    """All launches of one kernel for one call of every layer. seconds: their sum, each launch the
    fastest of several passes. call: the launches' label, without the layer's number.
    """

    kernel: str
    operator: str
    launches: int
    seconds: float
    cost: Cost
    least_seconds: float
    call: str = ""


@dataclass(frozen=True)
class StepProfile:
    """timeline: (label, kernel, seconds) of each launch, in order."""

    test: str
    kernels: tuple[KernelTime, ...]
    timeline: tuple[tuple[str, str, float], ...]

    @property
    def seconds(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels)


def profile_step(
    executor: Loaded, test: ModelTest, *, roofline: Roofline | None = None
) -> StepProfile:
    """Profiles one step of a test: the first chunk of a prompt, or one generated token of every
    sequence, at the test's depth.
    """
    limits = executor.limits
    sequences = [TokenSequence(limits, i, test.context) for i in range(test.batch)]
    count = 1 if test.kind == "tg" else min(test.tokens, limits.max_tokens)
    ids = token_ids(limits.vocab_size, test.depth + max(count, test.batch))
    for sequence in sequences:
        for first in range(0, test.depth, limits.max_tokens):
            part = ids[first : min(first + limits.max_tokens, test.depth)]
            executor.step(sequence.batch(part, first, logits=False))
    if test.kind == "tg" and test.batch > 1:
        batch = Together(sequences).batch(ids[: test.batch], test.depth)
    else:
        batch = sequences[0].batch(ids[test.depth : test.depth + count], test.depth)
    passes = [executor.profile(batch) for _ in range(_PASSES)]
    timeline = tuple(
        (label, kernel, min(run[i][2] for run in passes))
        for i, (label, kernel, _) in enumerate(passes[0])
    )
    plan = executor.plan_name(batch)
    size = len(batch.context_len)
    symbols = {"T": count * size, "S": size, "R": size, "M": executor.max_blocks}
    seen = None
    if isinstance(executor, GpuExecutor):  # the numbers of its plan, and the keys that it reads
        symbols = executor.manifest.entries[plan].bounds | {"K": size * (test.depth + count)}
        seen = size * (test.depth + (count + 1) / 2)
    kernels = _by_kernel(executor, plan, timeline, symbols, seen, roofline)
    return StepProfile(test.name, kernels, timeline)


def _by_kernel(
    executor: Loaded,
    plan_name: str,
    timeline: Sequence[tuple[str, str, float]],
    symbols: dict[str, int],
    seen: float | None,
    roofline: Roofline | None,
) -> tuple[KernelTime, ...]:
    manifest = executor.manifest
    costs = PlanCosts(manifest)
    plan = manifest.entries[plan_name]
    operators = {record.symbol: record.operator for record in manifest.kernels}
    operators[FILL] = FILL
    found: dict[tuple[str, str], KernelTime] = {}
    for launch, (label, kernel, seconds) in zip(plan.launches, timeline, strict=True):
        cost = costs.launch(launch, symbols, seen)
        least = cost.seconds(roofline) if roofline is not None else 0.0
        call = _LAYER.sub(".*.", label)
        # A library's product has the operator of the launch that it stands for.
        operator = operators[kernel if kernel in operators else launch.kernel]
        old = found.get((call, kernel), KernelTime(kernel, operator, 0, 0.0, Cost(), 0.0, call))
        found[call, kernel] = KernelTime(
            kernel,
            old.operator,
            old.launches + 1,
            old.seconds + seconds,
            old.cost + cost,
            old.least_seconds + least,
            call,
        )
    return tuple(sorted(found.values(), key=lambda k: -k.seconds))


def write_trace(path: Path, profiles: Sequence[StepProfile]) -> None:
    """Writes a Chrome trace (chrome://tracing, https://ui.perfetto.dev): one row a profile, one
    box a launch.

    Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    events: list[dict[str, object]] = []
    for row, profile in enumerate(profiles):
        events.append(
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": profile.test}}
        )
        clock = 0.0
        for label, kernel, seconds in profile.timeline:
            events.append(
                {
                    "ph": "X", "name": label, "cat": "kernel", "pid": 1, "tid": row,
                    "ts": round(clock * 1e6, 3), "dur": round(seconds * 1e6, 3), "args": {"kernel":
                    kernel},
                }
            )  # fmt: skip
            clock += seconds
    try:
        path.write_text(
            json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}), encoding="utf-8"
        )
    except OSError as error:
        raise storage_error(error, path) from error
