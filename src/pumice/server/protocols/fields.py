"""Fields that several protocols share, and their checks."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pumice.engine.request import TokenLogprob
from pumice.server.context import ServerContext
from pumice.server.core.generate import Generation
from pumice.server.errors import ApiError, bad_request

_SEEDS = 2**63


class Fields(BaseModel):
    """An unknown field, or a value of another type than declared, is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class SamplingFields(Fields):
    """OpenAI's sampling fields, and ours after them."""

    temperature: float | None = Field(None, ge=0, description="0 always takes the likeliest token.")
    top_p: float | None = Field(None, gt=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**64)
    stop: str | list[str] | None = Field(None, description="At most 16 strings.")
    user: str | None = Field(None, description="Taken and not looked at; never an id.")
    top_k: int | None = Field(None, ge=0, description="0: off.")
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, gt=0)
    stop_token_ids: list[int] | None = Field(None, max_length=64)
    ignore_eos: bool | None = None
    priority: int | None = Field(
        None, ge=-1000, le=1000, description="Lower runs first; 0 is usual."
    )
    deadline_s: float | None = Field(
        None, gt=0, le=86400, description="Seconds after which the answer ends as it is."
    )

    def sampling(self) -> dict[str, Any]:
        """Fields of `SamplingParams` that were given."""
        names = (
            "temperature", "top_p", "frequency_penalty", "presence_penalty", "top_k", "min_p",
            "repetition_penalty", "ignore_eos",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.seed is not None:
            given["seed"] = self.seed % _SEEDS
        if self.stop_token_ids is not None:
            given["stop_token_ids"] = tuple(self.stop_token_ids)
        if self.logit_bias:
            given["logit_bias"] = _logit_bias(self.logit_bias)
        return given


def _logit_bias(bias: Mapping[str, float]) -> dict[int, float]:
    ids: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise bad_request(
                f"logit_bias has the key {key!r:.40}; keys are token ids", "logit_bias"
            )
        ids[int(key)] = value
    return ids


def stops(context: ServerContext, stop: str | Iterable[str] | None, param: str) -> tuple[str, ...]:
    """400 for too many, too long or empty ones."""
    settings = context.settings
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(strings) > settings.max_stops:
        raise bad_request(
            f"{param} has {len(strings)} strings; {settings.max_stops} are allowed", param
        )
    for string in strings:
        if not 1 <= len(string) <= settings.max_stop_chars:
            raise bad_request(
                f"{param} holds a string of {len(string):,} characters; allowed: 1 to "
                f"{settings.max_stop_chars}",
                param,
            )
    return strings


def check_model(context: ServerContext, model: str | None) -> None:
    """404 for a model that is not served here."""
    names = context.settings.names
    if model is None or model in names or model.removesuffix(":latest") in names:
        return
    raise ApiError(
        404,
        f"the model {model!r:.100} is not served here; there is {', '.join(names)}",
        param="model",
        code="model_not_found",
    )


def check_choices(context: ServerContext, count: int, param: str = "n") -> None:
    """400 for more outputs than one call may ask for."""
    if count > context.settings.max_choices:
        raise bad_request(
            f"{param} asks for {count:,} outputs; {context.settings.max_choices} are allowed", param
        )


def dropped_header(*generations: Generation) -> dict[str, str]:
    """Says what truncation left out."""
    dropped = sum(generation.prompt.dropped for generation in generations)
    return {"X-Pumice-Truncated": str(dropped)} if dropped else {}


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


def token_text(context: ServerContext, token: int) -> tuple[str, list[int]]:
    """A token for people, and its bytes, which need not be whole characters."""
    data = context.tokenizer.token_bytes(token)
    return data.decode("utf-8", "replace"), list(data)


def logprob_entry(context: ServerContext, entry: TokenLogprob) -> dict[str, Any]:
    """OpenAI's ChatCompletionTokenLogprob."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        text, data = token_text(context, token)
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": data}

    return {
        **one(entry.token, entry.logprob),
        "top_logprobs": [one(token, logprob) for token, logprob in entry.top],
    }


def prompts_of(given: Any, param: str) -> list[str | list[int]]:
    """A text, texts, token ids or several lists of them, as a list of prompts."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise bad_request(f"{param} is an empty list", param)
    return [list(given)] if isinstance(given[0], int) else list(given)
