"""Guessing several tokens of an output and checking them in one step.

Speculative decoding (Leviathan et al., 2023): a step over one token of a sequence costs nearly as
much as one over several, so right guesses are tokens for little. Guesses never change what is
generated (`choose` says why), but for rounding: where a device computes one token by other kernels
than several, a near tie may fall the other way. How many are worth it is decided from measurements,
and none are made where they lose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pumice.engine.choose import Choice
from pumice.engine.plan import StepPlan
from pumice.engine.sequence import Sequence
from pumice.engine.step_cost import StepCost
from pumice.errors import UsageError
from pumice.runtime.step import Executable

_PRIOR = 0.6  # of a guess to be right, before any was checked
_WEIGHT = 0.1  # of a newly checked guess
_QUIET = 8  # steps without guesses, after which the next may be launched ahead of its guesses
_LOOK_EVERY = 8  # of such steps, one is not: there might be guesses by now
_PROBE_EVERY = 48  # tokens or steps without guesses, as they do not pay: they might by now


@dataclass(frozen=True)
class Speculation:
    """
    method: "ngram" looks for the last tokens earlier in prompt and output, and guesses what
    followed there (prompt lookup, Saxena 2023). "draft": `draft`, a smaller model of the same
    vocabulary, guesses greedily. most: guesses a step. adaptive: fewer, or none, where that is
    faster.
    """

    method: Literal["ngram", "draft"] = "ngram"
    most: int = 8
    adaptive: bool = True
    draft: Executable | None = None

    def __post_init__(self) -> None:
        if self.method not in ("ngram", "draft"):
            raise UsageError(f"speculation is {self.method!r}; allowed: ngram, draft")
        if self.most < 1:
            raise UsageError(f"most is {self.most}; it must be at least 1")
        if (self.method == "draft") != (self.draft is not None):
            raise UsageError("speculation by a draft model, and only that, needs the model")


class Proposer(Protocol):
    """Makes guesses."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        """For each sequence writes at most so many guesses after its known tokens, and sets
        `draft` to their number.
        """

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""


class Speculator:
    """Decides how many guesses are made, and for whom."""

    def __init__(self, settings: Speculation, proposer: Proposer) -> None:
        self._settings = settings
        self._proposer = proposer
        self._cost = StepCost()
        self._right: dict[int, float] = {}  # by id of the sequence: probability of a right guess
        self._waited: dict[int, int] = {}  # tokens without a guess
        self._dropped = 0  # steps in a row whose guesses would have lost
        self._excluded = self._quiet = 0
        self._off = ""
        self.proposed = self.accepted = self.steps = 0

    def propose(self, running: list[Sequence], *, prompts_wait: bool) -> None:
        """Gives the running sequences their guesses for the next step."""
        for sequence in running:
            sequence.draft = 0
        if prompts_wait or any(s.length - s.computed > 1 for s in running):
            self._off = "prompts are computed"  # a step that holds one is long enough
            return
        self._off = ""
        wanted = []
        for sequence in running:
            # Penalties change with every token, so each row would wait for the one before it.
            if sequence.request.params.penalized:
                continue
            room = sequence.longest - sequence.length - 1
            count = min(room, self._count(sequence, len(running)))
            if count > 0:
                wanted.append((sequence, count))
        self._proposer.propose(wanted)
        for sequence, _ in wanted:
            self._trim(sequence)
        if self._settings.adaptive:
            self._drop_what_loses(running)

    def allows_ahead(self) -> bool:
        """Whether the next step may be launched before its last tokens are known, and so without
        guesses: there have been none for a while.
        """
        return self._quiet >= _QUIET and self._quiet % _LOOK_EVERY != 0

    def _count(self, sequence: Sequence, sequences: int) -> int:
        """How many guesses are worth their time."""
        if not self._settings.adaptive:
            return self._settings.most
        share = self._cost.token_share(sequences)
        if share is None:  # a few tries, of different sizes, tell what guesses cost
            tries = min(1 + self.steps % 4, self._settings.most)
            return tries if self._cost.plain_known(sequences) else 0
        right = self._right.get(id(sequence), _PRIOR)
        if right <= share:
            waited = self._waited.get(id(sequence), 0) + 1
            self._waited[id(sequence)] = waited % _PROBE_EVERY
            return 1 if waited == _PROBE_EVERY else 0
        # The j-th guess brings right^j of a token, and is worth it above a token's share of a step.
        worth = math.log(share) / math.log(right) if right < 1 else self._settings.most
        return int(min(max(worth, 1), self._settings.most))

    def _trim(self, sequence: Sequence) -> None:
        """Guesses end before an end token, and where the grammar would not go on."""
        start, count = sequence.length, sequence.draft
        guesses = sequence.tokens[start : start + count].tolist()
        for index, token in enumerate(guesses):
            if token in sequence.stop_ids:
                guesses = guesses[:index]
                break
        if sequence.matcher is not None and guesses:
            guesses = guesses[: sequence.matcher.allowed(guesses)]
        sequence.draft = len(guesses)

    def _drop_what_loses(self, running: list[Sequence]) -> None:
        drafted = sum(s.draft for s in running)
        if not drafted:
            return
        expected = float(len(running))
        for sequence in running:
            right = self._right.get(id(sequence), _PRIOR)
            expected += sum(right ** (j + 1) for j in range(sequence.draft))
        self._dropped += 1
        if not self._cost.loses(len(running), drafted, expected) or self._dropped > _PROBE_EVERY:
            self._dropped = 0
            return
        self._off = "it would be slower"
        for sequence in running:
            sequence.draft = 0

    def observe(self, plan: StepPlan, choices: list[Choice], seconds: float) -> None:
        """What a step has shown."""
        self._quiet = 0 if plan.drafted else self._quiet + 1
        if plan.tokens == plan.decode_tokens:
            self._cost.observe(len(plan.sequences), plan.drafted, seconds)
        if not plan.drafted:
            return
        self.steps += 1
        self.proposed += plan.drafted
        drafts = {id(s): d for s, d in zip(plan.sequences, plan.drafts, strict=True) if d}
        for choice in choices:
            drafted = drafts.get(id(choice.sequence), 0)
            if drafted:
                self._learn(choice.sequence, drafted, len(choice.tokens) - 1)

    def _learn(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        self.accepted += accepted
        right = self._right.get(id(sequence), _PRIOR)
        for _ in range(accepted):
            right += _WEIGHT * (1 - right)
        if accepted < drafted:
            right -= _WEIGHT * right
        self._right[id(sequence)] = right

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._excluded += sequence.request.params.penalized
        self._right.pop(id(sequence), None)
        self._waited.pop(id(sequence), None)
        self._proposer.forget(sequence)

    def figures(self) -> dict[str, Any]:
        """off: why the last step had no guesses, where there is such a reason. excluded: outputs
        that had none, by reason.
        """
        return {
            "method": self._settings.method,
            "steps": self.steps,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "off": self._off,
            "excluded": {"penalties": self._excluded},
        }


def make_speculator(settings: Speculation, target: Executable) -> Speculator:
    """UsageError when the draft model has another vocabulary."""
    if settings.draft is None:
        from pumice.engine.ngram import NgramProposer

        return Speculator(settings, NgramProposer())
    from pumice.engine.draft_model import DraftModel

    sizes = settings.draft.limits.vocab_size, target.limits.vocab_size
    if sizes[0] != sizes[1]:
        raise UsageError(
            f"the draft model has {sizes[0]:,} tokens; the model has {sizes[1]:,}; they must be "
            "the same"
        )
    return Speculator(settings, DraftModel(settings.draft))
