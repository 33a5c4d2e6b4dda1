"""Greedy answers on an executor, step by step: prompts alone, in a batch that they join one after
the other while the others decode, and with tokens that the device draws itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pumice.bench.model import greedy_rows
from pumice.errors import DeviceError
from pumice.runtime.step import (
    Executable,
    SampledStep,
    SamplingExecutable,
    StepBatch,
    StepLimits,
)


@dataclass
class Lane:
    """One sequence in blocks of its own, which are not in order. length: tokens in the cache."""

    blocks: npt.NDArray[np.int32]
    length: int = 0


def lanes(limits: StepLimits, count: int, context: int) -> list[Lane]:
    """Lanes for `count` sequences of at most `context` tokens."""
    each = -(-context // limits.block_size)
    order = np.random.default_rng(0).permutation(count * each).astype(np.int32)
    return [Lane(order[i * each : (i + 1) * each]) for i in range(count)]


def ragged(
    parts: Sequence[tuple[Lane, Sequence[int]]], limits: StepLimits, *, every: bool = False
) -> StepBatch:
    """A step that appends each lane's new tokens. Rows: of each lane's last token, or of every."""
    size = limits.block_size
    positions, slots, context = [], [], []
    for lane, new in parts:
        where = np.arange(lane.length, lane.length + len(new))
        positions.append(where)
        slots.append(lane.blocks[where // size] * size + where % size)
        lane.length += len(new)
        context.append(lane.length)
    counts = [len(new) for _, new in parts]
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    columns = max(-(-n // size) for n in context)
    table = np.zeros((len(parts), columns), np.int32)
    for row, (lane, _) in zip(table, parts, strict=True):
        used = min(columns, len(lane.blocks))
        row[:used] = lane.blocks[:used]
    rows = np.arange(start[-1]) if every else start[1:] - 1
    return StepBatch(
        tokens=np.array([token for _, new in parts for token in new], np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slots=np.concatenate(slots).astype(np.int32),
        query_start=start,
        context_len=np.array(context, np.int32),
        block_table=table,
        sample_rows=rows.astype(np.int32),
    )


@dataclass
class Answer:
    """tokens: those that were chosen. margins: of each, its logit less the second best's. first:
    logits of the prompt's last token, float32[V]."""

    tokens: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    first: npt.NDArray[np.float32] | None = None

    def take(self, logits: npt.NDArray[np.float32]) -> int:
        if not np.isfinite(logits).all():
            raise DeviceError(f"the logits of token {len(self.tokens)} are not finite")
        if self.first is None:
            self.first = logits.copy()
        best, second = np.sort(np.partition(logits, -2)[-2:])[::-1]
        self.tokens.append(int(logits.argmax()))
        self.margins.append(float(best - second))
        return self.tokens[-1]


def alone(executor: Executable, prompts: Sequence[Sequence[int]], count: int) -> list[Answer]:
    """Each prompt by itself: the prompt in one step, then `count` − 1 steps of one token."""
    found = []
    for prompt in prompts:
        (lane,), answer = lanes(executor.limits, 1, len(prompt) + count), Answer()
        new: Sequence[int] = prompt
        for _ in range(count):
            new = [answer.take(executor.step(ragged([(lane, new)], executor.limits))[0])]
        found.append(answer)
    return found


def mixed(executor: Executable, prompts: Sequence[Sequence[int]], count: int) -> list[Answer]:
    """All prompts in one batch: one joins at every step, whole, while those before it decode; then
    all decode, until each has `count` tokens.
    """
    longest = max(len(prompt) for prompt in prompts) + count
    places = lanes(executor.limits, len(prompts), longest)
    answers = [Answer() for _ in prompts]
    waiting = [list(prompt) for prompt in prompts]
    step = 0
    while any(len(answer.tokens) < count for answer in answers):
        running = [i for i in range(min(step + 1, len(prompts))) if len(answers[i].tokens) < count]
        batch = ragged([(places[i], waiting[i]) for i in running], executor.limits)
        for i, logits in zip(running, executor.step(batch), strict=True):
            waiting[i] = [answers[i].take(logits)]
        step += 1
    return answers


def drawn(
    executor: SamplingExecutable, limits: StepLimits, prompts: Sequence[Sequence[int]], count: int
) -> list[list[int]]:
    """All prompts in one step, then `count` − 1 steps together, each launched before the tokens of
    the one before it are read: they stay on the device. Returns the tokens of each prompt.
    """
    places = lanes(limits, len(prompts), max(len(prompt) for prompt in prompts) + count)
    likeliest = greedy_rows(len(prompts))
    sources = np.arange(len(prompts), dtype=np.int32)
    first = ragged(list(zip(places, prompts, strict=True)), limits)
    launched: SampledStep = executor.launch(first, likeliest, None)
    found = []
    for _ in range(count - 1):
        batch = ragged([(lane, [0]) for lane in places], limits)  # in the place of what is drawn
        following = executor.launch(batch, likeliest, sources)
        found.append(launched.tokens().copy())
        launched = following
    found.append(launched.tokens().copy())
    return [[int(token) for token in row] for row in np.stack(found, axis=1)]
