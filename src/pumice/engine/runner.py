"""Runs planned steps: on the host's sampler, or on an executable that draws tokens itself."""

from __future__ import annotations

import numpy as np

from pumice.engine.batch import BatchBuilder
from pumice.engine.choose import Choice, choose
from pumice.engine.embedding import run_embedding
from pumice.engine.flight import Flight, Pilot
from pumice.engine.grammar_masks import GrammarMasks
from pumice.engine.plan import StepPlan
from pumice.engine.sampler import Sampler
from pumice.engine.scheduler import Scheduler
from pumice.runtime.step import Executable, StepLimits


class StepRunner:
    """A step is `begin` (or, when that has nothing, a plan of the scheduler's), `run`, and `end`
    once its tokens are in the books. An exception before that loses what was launched, and nothing
    else.
    """

    def __init__(self, executable: Executable, limits: StepLimits) -> None:
        self._executable = executable
        self._builder = BatchBuilder(limits)
        self._sampler = Sampler(limits.vocab_size)
        self._masks = GrammarMasks()
        self._pilot: Pilot | None = None
        if getattr(executable, "samples", False):
            self._pilot = Pilot(executable, limits, self._builder, self._sampler)
        self._launched: Flight | None = None  # before the tokens of its predecessor were read
        self._following: Flight | None = None

    def begin(self) -> StepPlan | None:
        """The plan of the step that was launched ahead, as far as it still counts."""
        flight, self._following = self._following, None
        self._launched = flight and flight.remaining()
        return None if self._launched is None else self._launched.plan

    def run(
        self, plan: StepPlan, scheduler: Scheduler, *, ahead: bool
    ) -> tuple[list[Choice], list[np.ndarray]]:
        """The tokens of a plan's sequences, and what the pools keep of those that are embedded.

        ahead: the next step may be launched before tokens are read.
        """
        parts = run_embedding(self._executable, self._builder, plan)
        flight, self._launched, self._following = self._launched, None, None
        if not plan.sequences:
            return [], parts
        masks = self._masks.begin(plan)
        if self._pilot is None:
            logits = self._executable.step(self._builder.build(plan))
            if masks is not None:
                masks.result()
            return choose(self._sampler, logits, plan), parts
        flight = flight or self._pilot.launch(plan)
        following = self._pilot.ahead(flight, scheduler) if ahead else None
        if masks is not None:
            masks.result()
        choices = self._pilot.choices(flight)
        self._launched = following
        return choices, parts

    def end(self) -> None:
        """The step is in the books."""
        self._following, self._launched = self._launched, None

    def forget(self) -> None:
        """What was launched ahead does not count any more."""
        self._following = self._launched = None

    def close(self) -> None:
        """Ends threads; new ones are made when they are needed."""
        self._masks.close()
