"""Sampling options as given on the command line or with /set, and checked in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.errors import UsageError

# Name → type. The names are the fields of `pumice.engine.SamplingParams`.
OPTIONS: Mapping[str, type] = {
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
    "seed": int,
    "max_tokens": int,
}


def given(**values: Any) -> dict[str, Any]:
    """Those that were given: the engine and the model decide the others."""
    return {name: value for name, value in values.items() if value is not None}


def parse_setting(name: str, value: str) -> Any:
    """A /set value as its type; None for `default`."""
    if name not in OPTIONS:
        raise UsageError(f"setting {name!r} is unknown; known: {', '.join(OPTIONS)}")
    if value == "default":
        return None
    try:
        return OPTIONS[name](value)
    except ValueError:
        kind = "an integer" if OPTIONS[name] is int else "a number"
        raise UsageError(f"{name} is {value!r}; it must be {kind}, or default") from None
