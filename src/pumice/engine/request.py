"""What a request is, and what comes back for it."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pumice.engine.pooling import Pooling, check_pooling
from pumice.engine.sampling_params import MAX_SEED, SamplingParams
from pumice.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "Completion",
    "Delta",
    "FinishReason",
    "Prompt",
    "Request",
    "SamplingParams",
    "TokenLogprob",
]

FinishReason = Literal["stop", "length", "cancelled", "deadline", "error"]
Prompt = str | SequenceOf[int]
MAX_PRIORITY = 2**31 - 1


@dataclass(frozen=True)
class Request:
    """
    prompt: text, or token ids. Text gets what the vocabulary puts before a text (BOS); the text of
    a control token in it is only text.
    request_id: names the request among those that are alive; None makes one.
    continues_text: the output goes on a text (a completion) rather than beginning one (an answer),
    so a leading space is kept.
    use_cache: take cached blocks of earlier requests, and leave blocks for later ones.
    cache_salt: only requests of the same salt share blocks.
    priority: lower runs first, ties in order of arrival. A request that waits gains on those that
    came later, so none waits for ever.
    deadline_s: seconds from submission; what is not finished then ends as "deadline".
    n: so many outputs of one prompt, which is computed once. Output i draws with seed + i.
    pooling: the request is for a vector of the prompt and generates nothing; how its hidden states
    become one. It neither takes cached blocks, which have no hidden states, nor leaves any.

    UsageError names a value that is not allowed, and what is.
    """

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    request_id: str | None = None
    continues_text: bool = True
    use_cache: bool = True
    cache_salt: bytes = b""
    priority: int = 0
    deadline_s: float | None = None
    n: int = 1
    pooling: Pooling | None = None

    def __post_init__(self) -> None:
        is_integer = isinstance(self.priority, int) and not isinstance(self.priority, bool)
        if not is_integer or abs(self.priority) > MAX_PRIORITY:
            raise UsageError(
                f"priority is {self.priority!r}; allowed: an integer, -{MAX_PRIORITY} to "
                f"{MAX_PRIORITY}"
            )
        if isinstance(self.n, bool) or not isinstance(self.n, int) or self.n < 1:
            raise UsageError(f"n is {self.n!r}; allowed: an integer, at least 1")
        if self.pooling is not None:
            check_pooling(self.pooling)
            if self.n != 1 or self.params.grammar is not None:
                raise UsageError("pooling is set; such a request has no outputs, n or grammar")
        if self.deadline_s is not None and not _is_duration(self.deadline_s):
            raise UsageError(
                f"deadline_s is {self.deadline_s!r}; allowed: a finite number of seconds above 0"
            )
        seed = self.params.seed
        if seed is not None and seed + self.n - 1 > MAX_SEED:
            raise UsageError(
                f"seed is {seed} and n is {self.n}; seed + n - 1 must not be above {MAX_SEED}"
            )


def _is_duration(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf  # type: ignore[operator]


@dataclass(frozen=True)
class TokenLogprob:
    """Natural logarithms of probabilities. top: (token id, log-probability), likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Completion:
    """A finished output of a request.

    finish_reason: stop (an end token or a stop string), length (max_tokens, or the context's end),
    cancelled, deadline, error. stop: the string or the token id that ended it. text ends before a
    stop string and holds no end token; token_ids are all that were generated, so a stop's too.
    logprobs: one a token when they were asked for, else empty. index: which of the request's `n`
    outputs this is. cached_tokens: of the prompt, found in the cache. ttft_s: seconds from
    submission to the first token. decode_s: from the first token to the end.
    error: what failed, if something did. vector: float32[H] of a request with `pooling`.
    """

    request_id: str
    prompt_tokens: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop: str | int | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cached_tokens: int = 0
    ttft_s: float = 0.0
    decode_s: float = 0.0
    error: str | None = None
    index: int = 0
    vector: np.ndarray | None = None


@dataclass
class Delta:
    """What a step added to output `index` of a request.

    text: what the tokens made certain, so never part of a stop string, and empty while a character
    is incomplete. completion: the whole, with the output's last delta.
    """

    request_id: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    completion: Completion | None = None
    index: int = 0
