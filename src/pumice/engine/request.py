"""What a request is, and what comes back for it."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from typing import Literal

from pumice.engine.sampling_params import SamplingParams

__all__ = [
    "Completion",
    "Delta",
    "FinishReason",
    "Prompt",
    "Request",
    "SamplingParams",
    "TokenLogprob",
]

FinishReason = Literal["stop", "length", "cancelled", "error"]
Prompt = str | SequenceOf[int]


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
    """

    prompt: Prompt
    params: SamplingParams = field(default_factory=SamplingParams)
    request_id: str | None = None
    continues_text: bool = True
    use_cache: bool = True
    cache_salt: bytes = b""


@dataclass(frozen=True)
class TokenLogprob:
    """Natural logarithms of probabilities. top: (token id, log-probability), likeliest first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Completion:
    """A finished request.

    finish_reason: stop (an end token or a stop string), length (max_tokens, or the context's end),
    cancelled, error. stop: the string or the token id that ended it. text ends before a stop string
    and holds no end token; token_ids are all that were generated, so a stop's too. logprobs: one a
    token when they were asked for, else empty. cached_tokens: of the prompt, found in the cache.
    ttft_s: seconds from submission to the first token. decode_s: from the first token to the end.
    error: what failed, if something did.
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


@dataclass
class Delta:
    """What a step added to a request.

    text: what the tokens made certain, so never part of a stop string, and empty while a character
    is incomplete. completion: the whole, with the last delta.
    """

    request_id: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    completion: Completion | None = None
