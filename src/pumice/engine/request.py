"""What a caller asks of the engine, and what comes back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pumice.errors import UsageError

FinishReason = Literal["stop", "length", "cancelled"]
MAX_SEED = 2**64 - 1
MAX_TOP_LOGPROBS = 20


def _check(name: str, value: float, low: float, high: float, allowed: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"{name} is {value!r}; allowed: {allowed}")


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen and when a generation ends. Every value is checked; UsageError names a bad one.

    temperature 0 takes the most likely token. top_k 0, top_p 1 and min_p 0 switch the filters off; they apply in that order.
    repetition_penalty divides positive and multiplies negative logits of tokens seen in prompt or output (Keskar et al., 2019);
    frequency and presence penalties subtract by count and by presence in the output (OpenAI's definition).
    logit_bias: token → added to its logit. seed: makes a request reproducible whatever runs beside it.
    max_tokens: None means as many as the context holds. logprobs: how many of the most likely tokens to report with each.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0.0, 100.0, "0 to 100")
        _check("top_p", self.top_p, 1e-9, 1.0, "above 0, at most 1")
        _check("min_p", self.min_p, 0.0, 1.0, "0 to 1")
        _check("repetition_penalty", self.repetition_penalty, 1e-3, 100.0, "0.001 to 100")
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "-2 to 2")
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0, "-2 to 2")
        for name, low, high in (
            ("top_k", 0, 2**31 - 1),
            ("seed", 0, MAX_SEED),
            ("max_tokens", 1, 2**31 - 1),
            ("logprobs", 0, MAX_TOP_LOGPROBS),
        ):
            value = getattr(self, name)
            if value is None and name != "top_k":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise UsageError(f"{name} is {value!r}; allowed: an integer from {low} to {high}")
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        if any(not isinstance(s, str) or not s for s in self.stop):
            raise UsageError(f"stop is {self.stop!r}; allowed: non-empty strings")
        for token, bias in self.logit_bias.items():
            if not isinstance(token, int) or token < 0:
                raise UsageError(f"logit_bias names token {token!r}; allowed: token ids")
            if not math.isfinite(bias) and bias != -math.inf:
                raise UsageError(f"logit_bias of token {token} is {bias!r}; allowed: finite numbers")

    @staticmethod
    def from_model(recommended: Mapping[str, Any], **given: Any) -> SamplingParams:
        """What was given, the model's own recommendation for the rest, else the defaults.

        A recommendation out of range is the file's mistake and is left out.
        """
        known = {f.name for f in dataclasses.fields(SamplingParams)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise UsageError(
                f"unknown sampling settings: {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            )
        own = {k: v for k, v in recommended.items() if k in known and v is not None}
        if recommended.get("do_sample") is False:
            own.pop("temperature", None)
        try:
            base = SamplingParams(**own)
        except (UsageError, TypeError):
            base = SamplingParams()
        return dataclasses.replace(base, **given)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalized(self) -> bool:
        """Whether the logits must be changed before a choice."""
        return (
            self.repetition_penalty != 1.0
            or self.frequency_penalty != 0.0
            or self.presence_penalty != 0.0
            or bool(self.logit_bias)
        )


@dataclass(frozen=True)
class TokenLogprob:
    """A chosen token's log-probability under the model (before temperature, filters and penalties), and the likeliest ones."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Delta:
    """What one step added to a request. `text` is only what can no longer change."""

    request_id: str
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None


@dataclass
class Completion:
    """A finished request."""

    request_id: str
    prompt_tokens: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cached_tokens: int = 0
    ttft_s: float = 0.0  # submission to first token
    decode_s: float = 0.0  # first token to last
