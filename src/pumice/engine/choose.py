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


def choose(sampler: Sampler, logits: np.ndarray, plan: StepPlan) -> list[Choice]:
    """Draws the tokens of all sequences that reached their last one.

    logits: float32[R, V], as the plan ordered them. Outputs that still share a prompt are all
    drawn from its one row. A guess is right when it is the very token that is drawn from the row
    before it; the next token is then drawn from its own row. Every token is so the one that would
    have been drawn without guesses, from the same random numbers: speculative decoding (Leviathan
    et al., 2023) with guesses that are certain, where accepting with probability p(guess) is this.
    """
    choices: list[Choice] = []
    for sequence, row in zip(plan.sampled, plan.rows, strict=True):
        choices.append(Choice(sequence, row))
        choices += [Choice(sibling, row) for sibling in sequence.siblings]
    going, offset = choices, 0
    while going:
        rows = [choice.row + offset for choice in going]
        part = logits if rows == list(range(len(logits))) else logits[rows]
        for choice in going:
            if choice.sequence.matcher is not None:
                choice.sequence.sampling.mask = choice.sequence.matcher.masks[offset]
        tokens, logprobs = sampler.sample(part, [c.sequence.sampling for c in going])
        after = []
        for index, choice in enumerate(going):
            sequence, token = choice.sequence, tokens[index]
            choice.tokens.append(token)
            choice.logprobs.append(None if logprobs is None else logprobs[index])
            if offset < sequence.draft and token not in sequence.stop_ids:
                if token == sequence.tokens[sequence.length + offset]:
                    after.append(choice)
        going, offset = after, offset + 1
    for choice in choices:
        choice.sequence.accepted = len(choice.tokens) - 1
    return choices
