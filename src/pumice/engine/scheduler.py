"""Which tokens go into the next step. No device is touched.

Continuous batching (Yu et al., "Orca", 2022) with chunked prefill (Agrawal et al., "Sarathi-Serve",
2024), in the order of arrival. Every running sequence that is past its prompt gets its token first;
what remains of a step's tokens goes to prompts, cut where the step is full, so a long prompt delays
the others by one chunk at most. A waiting sequence is admitted when blocks for all of its tokens
are available. When blocks run out, the latest arrival gives up all of its own and waits to be
computed again (as in vLLM), so the earliest always goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pumice.engine.kv_cache import KVCache
from pumice.engine.sequence import Sequence
from pumice.runtime.step import StepLimits


@dataclass
class StepPlan:
    """sequences[i] computes its next counts[i] tokens; `sampled` reach their last one."""

    sequences: list[Sequence] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sampled: list[Sequence] = field(default_factory=list)
    tokens: int = 0
    decode_tokens: int = 0  # of sequences that were past their prompt

    def add(self, sequence: Sequence, count: int) -> None:
        self.sequences.append(sequence)
        self.counts.append(count)
        self.tokens += count
        if sequence.computed + count == sequence.length:
            self.sampled.append(sequence)


class Scheduler:
    """
    waiting, running: in order of arrival; what runs arrived before what waits.
    preemptions: how often a sequence lost its blocks.
    """

    def __init__(
        self, limits: StepLimits, cache: KVCache, *, max_running: int | None, chunk: int | None
    ) -> None:
        """max_running: sequences that run at once. chunk: tokens of prompts in one step."""
        self.cache = cache
        self._max_tokens = limits.max_tokens
        self._chunk = limits.max_tokens if chunk is None else chunk
        # So every running sequence can have its token and its row of logits in every step.
        self._max_running = min(limits.max_sequences, limits.max_rows, limits.max_tokens)
        if max_running is not None:
            self._max_running = min(self._max_running, max_running)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.running or self.waiting)

    @property
    def free_places(self) -> int:
        """How many more sequences could run."""
        return self._max_running - len(self.running)

    def add(self, sequence: Sequence) -> None:
        sequence.order = self._arrivals
        self._arrivals += 1
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """A sequence has finished or was cancelled: its blocks are free at once."""
        if sequence.blocks:
            self.running.remove(sequence)
            self.cache.free(sequence)
        else:
            self.waiting.remove(sequence)

    def reset(self, sequences: Iterable[Sequence]) -> None:
        """The cache's content is lost; `sequences`, which are alive, will be computed again."""
        self.cache.reset()
        self.waiting = deque(sorted(sequences, key=lambda s: s.order))
        self.running = []
        for sequence in self.waiting:
            sequence.blocks = []
            sequence.computed = sequence.known_blocks = 0

    def schedule(self) -> StepPlan:
        """The next step. Nothing of it counts until `commit`; blocks are given now."""
        plan = StepPlan()
        index = 0
        while index < len(self.running):  # preemption takes from the end
            sequence = self.running[index]
            if sequence.computed == sequence.length - 1 and self._room(sequence):
                plan.add(sequence, 1)
            index += 1
        plan.decode_tokens = plan.tokens
        budget = min(self._max_tokens - plan.tokens, self._chunk)
        if len(plan.sequences) < len(self.running):
            for sequence in self.running:
                remaining = sequence.length - sequence.computed
                if remaining > 1 and budget:
                    plan.add(sequence, min(remaining, budget))
                    budget -= plan.counts[-1]
        while self.waiting and budget and len(self.running) < self._max_running:
            sequence = self.waiting[0]
            # A block for each that runs, so that who is admitted is not thrown out at once.
            if not self.cache.admit(sequence, reserve=len(self.running)):
                assert self.running, "a sequence that fits no empty cache was accepted"
                break
            self.running.append(self.waiting.popleft())
            plan.add(sequence, min(sequence.length - sequence.computed, budget))
            budget -= plan.counts[-1]
        return plan

    def _room(self, sequence: Sequence) -> bool:
        """Room for the last token, at the cost of later arrivals; False if it had to go itself."""
        while not self.cache.grow(sequence):
            victim = self.running.pop()
            self.cache.free(victim)
            self.waiting.appendleft(victim)
            self.preemptions += 1
            if victim is sequence:
                return False
        return True

    def commit(self, plan: StepPlan) -> None:
        """The step has run: its tokens are in the cache."""
        for sequence, count in zip(plan.sequences, plan.counts, strict=True):
            sequence.computed += count
            self.cache.learn(sequence)
