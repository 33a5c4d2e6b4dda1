"""Sampling parameters: every value that is not allowed is named, with what is."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pumice.engine import SamplingParams
from pumice.errors import UsageError


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -1, "at least 0"),
        ("temperature", math.nan, "at least 0"),
        ("temperature", math.inf, "at least 0"),
        ("temperature", "hot", "at least 0"),
        ("temperature", True, "at least 0"),
        ("top_k", -1, "0 (off) or more"),
        ("top_k", 1.5, "an integer"),
        ("top_p", 0, "above 0 to 1"),
        ("top_p", 2, "above 0 to 1"),
        ("top_p", math.nan, "above 0 to 1"),
        ("min_p", -0.1, "0 to 1"),
        ("min_p", 1.1, "0 to 1"),
        ("repetition_penalty", 0, "above 0"),
        ("repetition_penalty", -2.0, "above 0"),
        ("frequency_penalty", 2.1, "-2 to 2"),
        ("presence_penalty", -2.1, "-2 to 2"),
        ("logit_bias", {5: 101}, "-100 to 100"),
        ("logit_bias", {5: math.nan}, "-100 to 100"),
        ("logit_bias", {-5: 1}, "0 or more"),
        ("logit_bias", {"5": 1}, "an integer"),
        ("logit_bias", [5], "a mapping"),
        ("seed", -1, "0 to 9223372036854775807"),
        ("seed", 2**63, "0 to 9223372036854775807"),
        ("seed", 1.0, "an integer"),
        ("max_tokens", 0, "at least 1"),
        ("max_tokens", 2.0, "an integer"),
        ("stop", "", "not empty"),
        ("stop", ["a", ""], "not empty"),
        ("stop", [3], "strings"),
        ("stop", 3, "a list of strings"),
        ("stop_token_ids", [-1], "0 or more"),
        ("stop_token_ids", 3, "a list"),
        ("ignore_eos", 1, "true or false"),
        ("logprobs", 5, "true or false"),
        ("top_logprobs", 21, "0 to 20"),
        ("top_logprobs", 3, "logprobs=True"),
    ],
)
def test_a_bad_value_is_named(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingParams(**{name: value})
    assert name in caught.value.message
    assert allowed in caught.value.message
    with pytest.raises(UsageError):
        SamplingParams().replace(**{name: value})


def test_edges_are_allowed() -> None:
    params = SamplingParams(
        temperature=0, top_k=0, top_p=1, min_p=1, seed=2**63 - 1, max_tokens=1, top_logprobs=20,
        logprobs=True, frequency_penalty=-2, presence_penalty=2, logit_bias={0: -100}, stop="x",
        stop_token_ids=[3],
    )  # fmt: skip
    assert params.stop == ("x",)
    assert params.stop_token_ids == (3,)
    assert params.greedy and params.penalized


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UsageError, match=r"'heat' is no sampling parameter; there are temperature"):
        SamplingParams().replace(heat=1)
    with pytest.raises(UsageError, match="heat"):
        SamplingParams.from_model({}, heat=1)


def test_the_models_recommendation_comes_second() -> None:
    model = {"temperature": 0.6, "top_p": 0.9, "bos_token_id": 1, "top_k": None}
    params = SamplingParams.from_model(model, top_p=0.5)
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.5, 0)
    assert SamplingParams.from_model({"do_sample": False, "temperature": 0.6}).greedy
    assert SamplingParams.from_model({"temperature": -3, "top_k": 5}, seed=1).top_k == 0
    with pytest.raises(UsageError, match="top_p is 7"):
        SamplingParams.from_model(model, top_p=7)
