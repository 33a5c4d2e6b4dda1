"""Sampling parameters that are given, recommended by the model, and changed."""

from __future__ import annotations

import pytest

from pumice.engine import SamplingParams
from pumice.errors import UsageError


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
