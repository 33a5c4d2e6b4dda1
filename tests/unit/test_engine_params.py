"""Sampling parameters: every bad value is refused with its name, its value and what is allowed."""

from __future__ import annotations

import math

import pytest

from pumice.engine.request import SamplingParams
from pumice.errors import UsageError

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", NAN),
        ("temperature", math.inf),
        ("temperature", "1"),
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_k", None),
        ("top_p", 0),
        ("top_p", 2),
        ("top_p", -0.1),
        ("top_p", NAN),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("min_p", NAN),
        ("repetition_penalty", 0),
        ("repetition_penalty", -1),
        ("repetition_penalty", NAN),
        ("repetition_penalty", math.inf),
        ("frequency_penalty", 2.5),
        ("frequency_penalty", NAN),
        ("presence_penalty", -2.5),
        ("presence_penalty", NAN),
        ("seed", -1),
        ("seed", 2**64),
        ("seed", 0.5),
        ("max_tokens", 0),
        ("max_tokens", -3),
        ("max_tokens", 1.0),
        ("max_tokens", True),
        ("stop", ""),
        ("stop", ("ok", "")),
        ("stop", (3,)),
        ("stop", 3),
        ("stop_token_ids", (-1,)),
        ("stop_token_ids", ("x",)),
        ("stop_token_ids", 3),
        ("ignore_eos", 1),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"a": 1.0}),
        ("logit_bias", {1: NAN}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: "x"}),
        ("logit_bias", [1]),
        ("logprobs", -1),
    ],
)
def test_bad_value_names_itself(name: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingParams(**{name: value})
    message = caught.value.message
    assert name in message
    shown = value
    if isinstance(value, dict):  # the message may name the entry alone
        shown = next(k if k in (-1, "a") else v for k, v in value.items())
    elif isinstance(value, tuple):
        shown = next(v for v in value if v != "ok")
    assert repr(shown) in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -1, "0"),
        ("top_p", 2, "1"),
        ("seed", 2**64, str(2**63 - 1)[:3]),
        ("max_tokens", 0, "1"),
        ("min_p", 3, "0 to 1"),
        ("frequency_penalty", 3, "-2 to 2"),
    ],
)
def test_message_says_what_is_allowed(name: str, value: object, allowed: str) -> None:
    with pytest.raises(UsageError, match="allowed: ") as caught:
        SamplingParams(**{name: value})
    if name != "seed":
        assert allowed in caught.value.message.split("allowed: ")[1]


def test_edges_are_allowed() -> None:
    SamplingParams(temperature=0, top_p=1, min_p=0, seed=0, max_tokens=1, stop="x", top_k=0)
    SamplingParams(top_p=1e-6, min_p=1, seed=2**63 - 1, frequency_penalty=-2, presence_penalty=2)
    assert tuple(SamplingParams(stop="end").stop) == ("end",)
