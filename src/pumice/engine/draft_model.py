"""Guesses from a smaller model, which follows the outputs in a cache of its own.

Every output has a mirror: the same tokens, as far as the draft model has computed them. What was
guessed wrong is computed anew; a prompt is taken in by chunks, a chunk a step, and guesses begin
when it is all there. Guesses are the draft model's likeliest tokens.
"""

from __future__ import annotations

import numpy as np

from pumice.engine.batch import BatchBuilder
from pumice.engine.kv_cache import KVCache
from pumice.engine.plan import StepPlan
from pumice.engine.sequence import Sequence
from pumice.runtime.step import Executable

_CHUNK = 64  # tokens to catch up in one step, beside the guesses


class DraftModel:
    """A `Proposer`."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._limits = limits = executable.limits
        self._cache = KVCache(limits.num_blocks, limits.block_size, prefix_cache=False)
        self._builder = BatchBuilder(limits)
        self._mirrors: dict[int, Sequence] = {}  # by id of the output's sequence

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        going: list[tuple[Sequence, Sequence, int]] = []  # sequence, its mirror, guesses to make
        for sequence, count in wanted:
            mirror = self._synchronized(sequence)
            count = min(count, self._limits.context_length - sequence.length)
            if mirror is not None and count > 0 and self._room(mirror, count):
                going.append((sequence, mirror, count))
        going = self._catch_up(going)
        while going:
            self._guess([mirror for _, mirror, _ in going])
            for sequence, mirror, _ in going:
                sequence.tokens[sequence.length + sequence.draft] = mirror.last
                sequence.draft += 1
            going = [g for g in going if g[0].draft < g[2]]

    def forget(self, sequence: Sequence) -> None:
        mirror = self._mirrors.pop(id(sequence), None)
        if mirror is not None:
            self._cache.free(mirror)

    def _synchronized(self, sequence: Sequence) -> Sequence | None:
        """The mirror with the tokens that are known now; None when the context is too short."""
        length = sequence.length
        if length >= self._limits.context_length:
            self.forget(sequence)
            return None
        mirror = self._mirrors.get(id(sequence))
        if mirror is None:
            prompt = sequence.tokens[: sequence.prompt_length]
            mirror = self._mirrors[id(sequence)] = Sequence(
                sequence.request,
                sequence.request_id,
                prompt,
                longest=self._limits.context_length + 1,
                vocab_size=self._limits.vocab_size,
            )
        known = min(mirror.computed, length - 1)  # of the last token, the logits are needed
        wrong = np.flatnonzero(mirror.tokens[:known] != sequence.tokens[:known])
        mirror.computed = int(wrong[0]) if len(wrong) else known
        mirror.tokens[:length] = sequence.tokens[:length]
        mirror.length, mirror.last = length, sequence.last
        return mirror

    def _room(self, mirror: Sequence, count: int) -> bool:
        """Blocks for the known tokens and the guesses; a mirror without them starts again later."""
        if not mirror.blocks and not self._cache.admit(mirror, reserve=0):
            return False
        need = self._cache.blocks_for(mirror.length) - len(mirror.blocks)
        have = self._cache.stretch(mirror, count, reserve=0)
        if have == count:
            return True
        if need > 0 or have == 0:
            self._cache.free(mirror)
        return False

    def _catch_up(
        self, going: list[tuple[Sequence, Sequence, int]]
    ) -> list[tuple[Sequence, Sequence, int]]:
        """Computes what mirrors lack but for their last token; returns those that lack no more."""
        limits, plan = self._limits, StepPlan()
        budget = min(_CHUNK, limits.max_tokens)
        for _, mirror, _ in going:
            missing = min(mirror.length - 1 - mirror.computed, budget)
            if missing > 0 and len(plan.sequences) < limits.max_sequences:
                plan.add(mirror, missing)
                budget -= missing
        if plan.sequences:
            self._executable.step(self._builder.build(plan))
            self._commit(plan)
        ready = [g for g in going if g[1].computed == g[1].length - 1]
        return ready[: min(limits.max_sequences, limits.max_rows, limits.max_tokens)]

    def _guess(self, mirrors: list[Sequence]) -> None:
        """Each mirror's likeliest next token becomes its last."""
        plan = StepPlan()
        for mirror in mirrors:
            plan.add(mirror, 1)
        logits = self._executable.step(self._builder.build(plan))
        tokens = logits.argmax(axis=1).tolist()
        self._commit(plan)
        for mirror, token in zip(mirrors, tokens, strict=True):
            mirror.append(token)

    @staticmethod
    def _commit(plan: StepPlan) -> None:
        for mirror, count in zip(plan.sequences, plan.counts, strict=True):
            mirror.computed += count
