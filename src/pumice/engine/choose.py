"""From a step's logits to the next tokens of its sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pumice.engine.plan import StepPlan
from pumice.engine.request import TokenLogprob
from pumice.engine.sampler import Sampler
from pumice.engine.sequence import Sequence


@dataclass
class Choice:
    """What a sequence goes on with: at least one token. logprobs: one a token, or None each."""

    sequence: Sequence
    row: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob | None] = field(default_factory=list)
    by_device: bool = False


def choose(
    sampler: Sampler,
    logits: np.ndarray | None,
    plan: StepPlan,
    drawn: np.ndarray | None = None,
) -> list[Choice]:
    """Draws the tokens of all sequences that reached their last one.

    logits: float32[R, V], as the plan ordered them; None when the device has drawn all. drawn:
    int32[R], the device's tokens, for those requests that it can serve; what it cannot, and outputs
    that still share a row, are drawn here. Outputs that still share a prompt are all
    drawn from its one row. A guess is right when it is the very token that is drawn from the row
    before it; the next token is then drawn from its own row. Every token is so the one that would
    have been drawn without guesses, from the same random numbers: speculative decoding (Leviathan
    et al., 2023) with guesses that are certain, where accepting with probability p(guess) is this.
    """
    choices: list[Choice] = []
    for sequence, row in zip(plan.sampled, plan.rows, strict=True):
        by_device = drawn is not None and sequence.sampling.on_device
        choices.append(Choice(sequence, row, by_device=by_device))
        choices += [Choice(sibling, row) for sibling in sequence.siblings]
    going, offset = choices, 0
    while going:
        _draw(sampler, logits, [c for c in going if not c.by_device], offset)
        after = []
        for choice in going:
            if choice.by_device and drawn is not None:
                choice.tokens.append(int(drawn[choice.row + offset]))
                choice.logprobs.append(None)
            sequence, token = choice.sequence, choice.tokens[-1]
            if offset < sequence.draft and token not in sequence.stop_ids:
                if token == sequence.tokens[sequence.length + offset]:
                    after.append(choice)
        going, offset = after, offset + 1
    for choice in choices:
        choice.sequence.accepted = len(choice.tokens) - 1
    return choices


def _draw(sampler: Sampler, logits: np.ndarray | None, going: list[Choice], offset: int) -> None:
    """A token for each choice, from the row `offset` after its first."""
    if not going:
        return
    assert logits is not None
    rows = [choice.row + offset for choice in going]
    part = logits if rows == list(range(len(logits))) else logits[rows]
    for choice in going:
        if choice.sequence.matcher is not None:
            choice.sequence.sampling.mask = choice.sequence.matcher.masks[offset]
    tokens, logprobs = sampler.sample(part, [c.sequence.sampling for c in going])
    for index, choice in enumerate(going):
        choice.tokens.append(tokens[index])
        choice.logprobs.append(None if logprobs is None else logprobs[index])
