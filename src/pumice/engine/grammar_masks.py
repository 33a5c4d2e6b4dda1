"""Token masks of a step, made beside it.

What may come next is known before the step is run, so a thread finds out while the device computes.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from pumice.engine.plan import StepPlan
from pumice.engine.sequence import Sequence


class GrammarMasks:
    """One thread, made when the first grammar runs."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, plan: StepPlan) -> Future[None] | None:
        """Starts to make the masks of all rows of a plan; None when no grammar is in it."""
        constrained = [
            s for lead in plan.sampled for s in (lead, *lead.siblings) if s.matcher is not None
        ]
        if not constrained:
            return None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="pumice-grammar")
        return self._pool.submit(_compute, constrained)

    def close(self) -> None:
        """Ends the thread; the next grammar makes another."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()


def _compute(sequences: list[Sequence]) -> None:
    for sequence in sequences:
        if sequence.matcher is not None:
            start = sequence.length
            sequence.matcher.compute(sequence.tokens[start : start + sequence.draft].tolist())
