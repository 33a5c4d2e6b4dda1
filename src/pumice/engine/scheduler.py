"""Which tokens go into the next step. No device is touched.

Continuous batching (Yu et al., "Orca", 2022) with chunked prefill (Agrawal et al., "Sarathi-Serve",
2024). Sequences that are past their prompt decode in every other step at least; between, prompts
are computed in chunks, so a long one delays the others by one chunk at most. Steps that only decode
run the kernels made for that, and so a sequence's numbers do not depend on what else is there. With
`mixed`, chunks ride in the decoding steps instead: less work where weights are slow to read.

A waiting sequence is admitted when blocks for all of its tokens are available. When blocks run out,
the sequence of the worst rank gives up all of its own and waits to be computed again (as in vLLM),
so that of the best rank always goes on.

A sequence's rank is its arrival plus `AGEING_S` seconds for each step of priority. It does not
change, and yet a sequence that waits gains on all that arrive later: nothing waits for ever behind
a stream of higher priority.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

from pumice.engine.kv_cache import KVCache
from pumice.engine.pace import Pace
from pumice.engine.plan import StepPlan
from pumice.engine.sequence import Sequence
from pumice.engine.stats import Decisions
from pumice.runtime.step import StepLimits

AGEING_S = 10.0  # of waiting that outweigh one step of priority

_rank = attrgetter("rank")


class Scheduler:
    """
    waiting, running: in order of rank, the best first. decisions: counters, the engine's too.
    """

    def __init__(
        self,
        limits: StepLimits,
        cache: KVCache,
        *,
        max_running: int | None = None,
        chunk: int | None = None,
        mixed: bool = False,
    ) -> None:
        """max_running: sequences that run at once. chunk: tokens of prompts in one step; None: as
        many as do not delay the others much (`Pace`). mixed: a step may decode and compute prompts;
        else they take turns.
        """
        self.cache = cache
        self.pace = Pace(limits.max_tokens, mixed=mixed, sizes=limits.padded_tokens)
        self.decisions = Decisions()
        self._max_tokens = limits.max_tokens
        self._max_rows = limits.max_rows
        self._chunk = chunk
        self._mixed = mixed
        self._decoded = False  # by the last step
        # So every running sequence can have its token and its row of logits in every step.
        self.max_running = min(limits.max_sequences, limits.max_rows, limits.max_tokens)
        if max_running is not None:
            self.max_running = min(self.max_running, max_running)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._arrivals = 0

    @property
    def has_work(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.running or self.waiting)

    @property
    def free_places(self) -> int:
        """How many more sequences could run. One that will fork has places for all its copies."""
        return self.max_running - sum(1 + len(s.siblings) for s in self.running)

    @property
    def _soon(self) -> int:
        """How many sequences will run, if blocks suffice."""
        return min(self.max_running, len(self.running) + len(self.waiting))

    def add(self, sequence: Sequence) -> None:
        """A sequence has arrived; `arrival` says when."""
        effective = sequence.arrival + AGEING_S * sequence.request.priority
        sequence.rank = (effective, self._arrivals, sequence.index)
        self._arrivals += 1
        insort(self.waiting, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """A sequence has finished or was cancelled: its blocks are free at once."""
        if sequence.blocks:
            self.running.remove(sequence)
            self.cache.free(sequence)
        else:
            self.waiting.remove(sequence)

    def fork(self, lead: Sequence) -> None:
        """The prompt is computed: the lead's siblings run too, on the same blocks."""
        for sibling in lead.siblings:
            sibling.rank = (*lead.rank[:2], sibling.index)
            self.cache.share(lead, sibling)
            insort(self.running, sibling, key=_rank)
        lead.siblings = []

    def reset(self, sequences: Iterable[Sequence]) -> None:
        """The cache's content is lost; `sequences`, which are alive, will be computed again."""
        self.cache.reset()
        self.waiting = sorted(sequences, key=_rank)
        self.running = []
        for sequence in self.waiting:
            sequence.blocks = []
            sequence.computed = sequence.known_blocks = 0

    def schedule(self) -> StepPlan:
        """The next step. Nothing of it counts until `commit`; blocks are given now."""
        plan = StepPlan()
        if self.waiting:
            self._make_way(self.waiting[0])
        if self._mixed or not self._decoded:
            self._decode(plan)
        self._decoded = plan.tokens > 0
        if self._mixed or not self._decoded:
            self._compute_prompts(plan)
        if not plan.tokens:  # it was the prompts' turn, and there are none
            self._decode(plan)
        return plan

    def decodes_ahead(self) -> None:
        """The next step decodes what runs, and was made without `schedule`."""
        self._decoded = True

    def _compute_prompts(self, plan: StepPlan) -> None:
        """Parts of prompts for what the step has room for, and who can be admitted."""
        budget = self._max_tokens - plan.tokens
        decoding = sum(s.decodes for s in self.running)
        if self._chunk is not None:
            budget = min(budget, self._chunk)
        elif decoding:
            # Where several prompts wait: by the pace that streams will have when the others run.
            budget = min(budget, self.pace.chunk(max(decoding, self._soon - 1)))
        for sequence in self.running:
            if sequence.computed < sequence.length and not sequence.decodes and budget:
                budget -= self._prefill(plan, sequence, budget)
        while self.waiting and budget and (admitted := self._admit()) is not None:
            plan.admitted.append(admitted)
            budget -= self._prefill(plan, admitted, budget)

    def _decode(self, plan: StepPlan) -> None:
        """A token for each sequence that is past its prompt, and its guesses if there is room."""
        spare = min(self._max_tokens, self._max_rows) - self._soon
        index = 0
        while index < len(self.running):  # preemption takes from the end
            sequence = self.running[index]
            # What lost its copy of a shared block has more than one token to compute again.
            if sequence.decodes and self._room(sequence) and sequence.decodes:
                draft = min(sequence.draft, spare)
                if draft:
                    draft = self.cache.stretch(sequence, draft, reserve=len(self.running))
                spare -= draft
                plan.add(sequence, 1 + draft, draft)
            index += 1
        plan.decode_tokens = plan.tokens

    def _prefill(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        remaining = sequence.length - sequence.computed
        count = min(remaining, budget)
        if sequence.pool is not None:
            plan.add_embedding(sequence, count)
            self.decisions.chunks += 1
            return count
        if remaining - count == 1 and (count > 1 or plan.tokens):
            # A last token alone would be computed by decoding's kernels, which round otherwise.
            count -= 1
        if not count:
            return budget  # the next step's
        plan.add(sequence, count)
        self.decisions.chunks += 1
        return count

    def _admit(self) -> Sequence | None:
        """The first that waits gets its blocks and runs; None when it has to wait on."""
        sequence = self.waiting[0]
        if self.free_places < 1 + len(sequence.siblings):
            return None
        # A block for each that runs, so that who is admitted is not thrown out at once.
        reserve = len(self.running) + len(sequence.siblings) if self.running else 0
        if not self.cache.admit(sequence, reserve):
            assert self.running, "a sequence that fits no empty cache was accepted"
            return None
        del self.waiting[0]
        insort(self.running, sequence, key=_rank)
        self.decisions.admitted += 1
        return sequence

    def _make_way(self, head: Sequence) -> None:
        """Preempts what is of worse priority, if that lets `head` run."""
        places = 1 + len(head.siblings)
        blocks = self.cache.blocks_for(head.length)
        worse = [s for s in self.running if s.request.priority > head.request.priority]
        worse = [s for s in worse if s.rank > head.rank]

        def fits(free: int, available: int, running: int) -> bool:
            return free >= places and available >= blocks + running + len(head.siblings)

        free, available = self.free_places, self.cache.available
        if not worse or fits(free, available, len(self.running)):
            return
        free += sum(1 + len(s.siblings) for s in worse)
        available += sum(len(s.blocks) for s in worse)
        if not fits(free, available, len(self.running) - len(worse)):
            return
        while worse and not fits(self.free_places, self.cache.available, len(self.running)):
            self._preempt(worse.pop())

    def _room(self, sequence: Sequence) -> bool:
        """Room for the last token, at the cost of worse ranks; False if it had to go itself."""
        while not self.cache.grow(sequence):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self.cache.free(victim)
        insort(self.waiting, victim, key=_rank)
        self.decisions.preempted += 1

    def commit(self, plan: StepPlan) -> None:
        """The step has run: its tokens are in the cache. Of guesses, `accepted` were right."""
        for sequence, count, draft in zip(plan.sequences, plan.counts, plan.drafts, strict=True):
            sequence.computed += count - draft + sequence.accepted
            sequence.draft = sequence.accepted = 0
            self.cache.learn(sequence)
        if plan.embedding is not None:
            self.commit(plan.embedding)
