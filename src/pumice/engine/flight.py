"""Steps on an executable that draws tokens itself: launched now, read later.

Only ids come back from the device, and where it is certain what the next step computes, that one is
launched before the ids of the one before are read: the device takes the tokens from its own memory,
and works while the host reads, decodes text and plans. Sequences that turn out to have ended were
computed a step too far; nothing of that counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.engine.batch import BatchBuilder
from pumice.engine.choose import Choice, choose
from pumice.engine.draw_params import DrawParams
from pumice.engine.plan import StepPlan
from pumice.engine.sampler import Sampler
from pumice.engine.scheduler import Scheduler
from pumice.runtime.step import SampledStep, StepLimits


@dataclass
class Flight:
    """A launched step. known: of one launched ahead, how many tokens each sequence must have when
    it is read.
    """

    plan: StepPlan
    step: SampledStep
    known: list[int] | None = None

    def remaining(self) -> Flight | None:
        """The part that still counts: sequences that have not ended since; None when all have."""
        if self.known is None:
            return self
        alive = [
            (sequence, row)
            for row, (sequence, known) in enumerate(
                zip(self.plan.sequences, self.known, strict=True)
            )
            if sequence.blocks and sequence.length == known
        ]
        if not alive:
            return None
        plan = StepPlan.decoding([sequence for sequence, _ in alive])
        plan.rows = [row for _, row in alive]
        return Flight(plan, self.step)


class Pilot:
    """Launches steps. Its batch builder and sampler are the engine's."""

    def __init__(
        self, executable: Any, limits: StepLimits, builder: BatchBuilder, sampler: Sampler
    ) -> None:
        self._executable = executable
        self._builder, self._sampler = builder, sampler
        self._params = DrawParams(limits.max_rows)

    def launch(self, plan: StepPlan) -> Flight:
        """Launches a scheduled step."""
        rows = [
            (sequence, sequence.length + offset)
            for sequence in plan.sampled
            for offset in range(1 + sequence.draft)
        ]
        batch = self._builder.build(plan)
        return Flight(plan, self._executable.launch(batch, self._params.of(rows)))

    def ahead(self, flight: Flight, scheduler: Scheduler) -> Flight | None:
        """Launches the step after one that has not been read, if what it computes is certain: every
        sequence that runs gets a token from this one, drawn on the device, and nobody waits.
        """
        running = scheduler.running
        row_of = dict(zip(map(id, flight.plan.sampled), flight.plan.rows, strict=True))
        if scheduler.waiting or len(running) != len(row_of) or flight.plan.embedding is not None:
            return None
        if any(id(s) not in row_of or not s.sampling.on_device or s.siblings for s in running):
            return None
        if any(s.draft for s in running):
            return None
        going = [s for s in running if s.length + 1 < s.longest]
        if not going or not all(scheduler.cache.stretch(s, 1, reserve=0) for s in going):
            return None
        scheduler.decodes_ahead()
        batch = self._builder.build_ahead(going)
        sources = np.array([row_of[id(s)] for s in going], np.int32)
        sampling = self._params.of([(s, s.length + 1) for s in going])
        step = self._executable.launch(batch, sampling, sources)
        return Flight(StepPlan.decoding(going), step, [s.length + 1 for s in going])

    def choices(self, flight: Flight) -> list[Choice]:
        """The tokens of a launched step; waits for them."""
        drawn = flight.step.tokens()
        on_device = all(s.sampling.on_device and not s.siblings for s in flight.plan.sampled)
        logits = None if on_device else flight.step.logits()
        return choose(self._sampler, logits, flight.plan, drawn)
