"""Which tokens of which sequences the next step computes. Knows no device and no model.

Continuous batching (Yu et al., "Orca", 2022) with chunked prefill (Agrawal et al., "Sarathi-Serve", 2024): every running sequence gets its
one token first, prompts fill what is left of the step, so a long prompt holds others up by one chunk at the most. When the cache
is full the youngest sequence gives its blocks back and is computed again later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pumice.engine.kv_cache import BlockPool
from pumice.engine.sequence import Sequence
from pumice.errors import ContextLengthError
from pumice.runtime.step import StepLimits


@dataclass
class Scheduler:
    """Sequences in two queues: `waiting` (no blocks) and `running` (in the order of admission)."""

    limits: StepLimits
    pool: BlockPool
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    preemptions: int = 0

    def submit(self, sequence: Sequence) -> None:
        """Queues a sequence; ContextLengthError when it could never run."""
        length = len(sequence.tokens)
        limit = min(self.limits.context_length, self.pool.num_blocks * self.pool.block_size)
        if length >= limit:
            raise ContextLengthError(
                f"the prompt has {length:,} tokens; the context holds {limit:,}, output included",
                hint="Shorten the prompt, or load the model with a longer context (--context).",
            )
        sequence.max_length = min(sequence.max_length, limit)
        self.waiting.append(sequence)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def schedule(self) -> list[tuple[Sequence, int]]:
        """(sequence, number of its next tokens) of the next step; their blocks are reserved."""
        budget = self.limits.max_tokens
        step: list[tuple[Sequence, int]] = []
        # One token for each sequence that decodes, oldest first.
        for sequence in list(self.running):
            if sequence.pending == 1 and sequence in self.running and budget:
                if self._make_room(sequence, 1):
                    step.append((sequence, 1))
                    budget -= 1
        # A victim may already have been given its token: it no longer takes part.
        step = [(s, n) for s, n in step if s in self.running]
        budget = self.limits.max_tokens - len(step)
        for sequence in list(self.running):
            if sequence.pending > 1 and budget:
                count = min(sequence.pending, budget)
                if sequence.reserve(self.pool, count):
                    step.append((sequence, count))
                    budget -= count
        room = min(self.limits.max_sequences, self.limits.max_rows)
        while self.waiting and budget and len(self.running) < room:
            sequence = self.waiting[0]
            self._admit(sequence)
            count = min(sequence.pending, budget)
            if not sequence.reserve(self.pool, count):
                sequence.drop(self.pool)
                break
            self.waiting.popleft()
            self.running.append(sequence)
            step.append((sequence, count))
            budget -= count
        if not step and self.running:
            # Prompts alone fill the cache and none can go on: the youngest makes room for the oldest.
            self._preempt(self.running[-1])
            return self.schedule()
        return step

    def _admit(self, sequence: Sequence) -> None:
        """Takes over the blocks that the prefix cache has."""
        sequence.blocks, sequence.digests = self.pool.match(sequence.tokens)
        sequence.computed = len(sequence.blocks) * self.pool.block_size
        if not sequence.preemptions:
            sequence.cached = sequence.computed

    def _make_room(self, sequence: Sequence, count: int) -> bool:
        """Reserves, sending younger sequences back while there is no room; False when `sequence` itself went."""
        while not sequence.reserve(self.pool, count):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        victim.drop(self.pool)
        victim.preemptions += 1
        self.preemptions += 1
        self.running.remove(victim)
        self.waiting.appendleft(victim)

    def finish(self, sequence: Sequence) -> None:
        """Takes a sequence out, wherever it is, and frees its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        sequence.drop(self.pool)
