"""The sampler against definitions in float64, its distribution, ties and seeds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pumice.engine.sampler import NOT_FINITE, Sampler
from pumice.engine.sampling_params import SamplingParams
from pumice.engine.sampling_state import SamplingState


def state(
    params: SamplingParams, vocab: int, prompt: Any = (0,), output: Any = ()
) -> SamplingState:
    made = SamplingState(params, np.array(prompt, dtype=np.int32), vocab)
    for token in output:
        if made.history is not None:
            made.history.append(token)
    return made


def adjusted(logits: np.ndarray, params: SamplingParams, prompt: Any, output: Any) -> np.ndarray:
    """Penalties and bias, one token after the other."""
    out = logits.astype(np.float64)
    for token in set(prompt) | set(output):
        r = params.repetition_penalty
        out[token] = out[token] / r if out[token] > 0 else out[token] * r
    for token in set(output):
        count = list(output).count(token)
        out[token] -= params.frequency_penalty * count + params.presence_penalty
    for token, bias in params.logit_bias.items():
        out[token] += bias
    return out


def distribution(
    logits: np.ndarray, params: SamplingParams, prompt: Any = (), output: Any = ()
) -> np.ndarray:
    """Probabilities float64[V] by the definitions: temperature, top-k, top-p, min-p."""
    z = adjusted(logits, params, prompt, output) / params.temperature
    p = np.exp(z - z.max())
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    if params.top_k:
        order = order[: params.top_k]
    total, before, kept = sum(p[i] for i in order), 0.0, []
    for i in order:
        if before >= params.top_p * total and params.top_p < 1:
            break
        kept.append(i)
        before += p[i]
    out = np.zeros(len(p))
    for i in kept:
        if p[i] >= params.min_p * p[order[0]]:
            out[i] = p[i]
    return out / out.sum()


def draw(
    logits: np.ndarray, params: SamplingParams, count: int, prompt: Any = (0,), output: Any = ()
) -> np.ndarray:
    vocab = len(logits)
    sampler = Sampler(vocab)
    tokens: list[int] = []
    for first in range(0, count, 500):
        seeds = range(first, min(first + 500, count))
        states = [state(params.replace(seed=s), vocab, prompt, output) for s in seeds]
        tokens += sampler.sample(np.tile(logits, (len(states), 1)), states)[0]
    return np.array(tokens)


CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 7},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"top_k": 10, "top_p": 0.8},
    {"top_k": 12, "min_p": 0.1},
    {"top_k": 15, "top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.7},
    {"frequency_penalty": 0.9},
    {"presence_penalty": 1.3},
    {"frequency_penalty": -0.5, "presence_penalty": -0.4},
    {"logit_bias": {3: 2.0, 9: -100.0}},
    {"logit_bias": {5: 1.5}, "repetition_penalty": 1.2, "top_p": 0.9, "frequency_penalty": 0.3},
]


@pytest.mark.parametrize("vocab", [37, 1031])
@pytest.mark.parametrize("changes", CASES, ids=str)
def test_distribution(changes: dict[str, Any], vocab: int) -> None:
    logits = np.random.default_rng(vocab).normal(size=vocab).astype(np.float32) * 2
    params = SamplingParams(**{"temperature": 1.0, **changes})
    prompt, output = (1, 2, 3, 2), (3, 4, 4, 4, 5)
    count = 2000
    expected = distribution(logits, params, prompt, output) * count
    observed = np.bincount(draw(logits, params, count, prompt, output), minlength=vocab)
    assert not observed[expected == 0].any(), "a token outside of the filters was drawn"
    # Chi-squared over tokens that are expected often enough, the rare ones together.
    often = expected >= 8
    e = np.append(expected[often], expected[~often].sum())
    o = np.append(observed[often], observed[~often].sum())
    e, o = e[e > 1e-9], o[e > 1e-9]
    freedom = max(len(e) - 1, 1)
    assert ((o - e) ** 2 / e).sum() < freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("vocab", [5, 1000, 4099])
def test_every_draw_is_where_the_float64_cumulative_puts_it(vocab: int) -> None:
    """One uniform a token: with a nucleus, tokens are in order of probability."""
    rng = np.random.default_rng(vocab)
    sampler, off = Sampler(vocab), 0
    for seed in range(40):
        logits = rng.normal(size=vocab).astype(np.float32) * 3
        params = SamplingParams(temperature=0.7, top_p=0.9, seed=seed)
        token = sampler.sample(logits[None], [state(params, vocab)])[0][0]
        p = distribution(logits, params)
        order = np.lexsort((np.arange(vocab), -p))
        u = np.random.Generator(np.random.PCG64(seed)).random()
        off += token != order[np.searchsorted(np.cumsum(p[order]), u, side="right")]
    assert off <= 1  # float32 may move a border that u happens to be at


def test_greedy_ties_go_to_the_lowest_id() -> None:
    logits = np.zeros((3, 9), dtype=np.float32)
    logits[0, [4, 7]] = 2
    logits[1, [2, 8]] = 5
    params = SamplingParams()
    states = [state(params, 9) for _ in range(3)]
    assert Sampler(9).sample(logits, states)[0] == [4, 2, 0]
    assert Sampler(9).sample(logits[:1], states[:1])[0] == [4]
    one = [state(SamplingParams(temperature=1, top_k=1, seed=s), 9) for s in range(3)]
    assert Sampler(9).sample(logits, one)[0] == [4, 2, 0]


def test_greedy_applies_penalties_and_bias() -> None:
    logits = np.array([[1.0, 3.0, 2.9, 0.0]], dtype=np.float32)
    params = SamplingParams(repetition_penalty=1.5)
    assert Sampler(4).sample(logits, [state(params, 4, prompt=(1,))])[0] == [2]
    biased = SamplingParams(logit_bias={3: 50.0})
    assert Sampler(4).sample(logits, [state(biased, 4)])[0] == [3]
    assert logits.tolist() == [[1.0, 3.0, np.float32(2.9), 0.0]], "the logits were changed"


def test_a_seed_gives_the_same_tokens_alone_and_in_any_batch() -> None:
    vocab, steps = 701, 6
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(steps, vocab)).astype(np.float32) * 2
    kinds = [
        SamplingParams(temperature=1, seed=5),
        SamplingParams(temperature=0.8, seed=6, top_p=0.9),
        SamplingParams(temperature=1.2, seed=7, top_k=40, min_p=0.01),
        SamplingParams(temperature=0.9, seed=8, frequency_penalty=0.5),
        SamplingParams(),
    ]
    for params in kinds:
        single, sampler = state(params, vocab), Sampler(vocab)
        expected = [sampler.sample(row[None], [single])[0][0] for row in rows]
        for others in (1, 3, 12):
            mine, got = state(params, vocab), []
            fill = [state(kinds[i % 5].replace(seed=100 + i), vocab) for i in range(others)]
            for row in rows:
                noise = rng.normal(size=(others, vocab)).astype(np.float32) * 4
                place = others // 2
                batch = np.insert(noise, place, row, axis=0)
                states = [*fill[:place], mine, *fill[place:]]
                got.append(sampler.sample(batch, states)[0][place])
            assert got == expected


@pytest.mark.parametrize("temperature", [1e-320, 1e-38, 1e-6, 1e-4, 1e4, 1e38, 1e308])
def test_extreme_temperatures(temperature: float) -> None:
    logits = np.array([0.5, 4.0, -1e30, 3.9], dtype=np.float32)
    tokens = set(draw(logits, SamplingParams(temperature=temperature), 200).tolist())
    if temperature < 1e-3:
        assert tokens == {1}
    else:
        assert {0, 1, 3} <= tokens <= {0, 1, 2, 3}


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = np.full(600, -np.inf, dtype=np.float32)
    logits[[3, 599]] = 1.0
    for params in (
        SamplingParams(temperature=1),
        SamplingParams(temperature=1, top_k=50),
        SamplingParams(temperature=1, top_p=0.99),
        SamplingParams(temperature=1, min_p=0.001),
    ):
        assert set(draw(logits, params, 300).tolist()) == {3, 599}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_damaged_rows_are_reported_and_do_not_touch_others(bad: float) -> None:
    logits = np.random.default_rng(0).normal(size=(4, 50)).astype(np.float32)
    logits[1, 7] = logits[3, 7] = bad
    greedy, drawn = SamplingParams(logprobs=True), SamplingParams(temperature=1, seed=1)
    states = [state(p, 50) for p in (greedy, greedy, drawn, drawn)]
    tokens, logprobs = Sampler(50).sample(logits, states)
    assert tokens[0] == logits[0].argmax() and 0 <= tokens[2] < 50
    assert tokens[1] == tokens[3] == NOT_FINITE
    assert logprobs is not None and logprobs[1] is None
    alone = Sampler(50).sample(logits[1:2], [state(SamplingParams(), 50)])
    assert alone == ([NOT_FINITE], None)


def test_logprobs_are_the_models_own() -> None:
    logits = np.random.default_rng(9).normal(size=(2, 301)).astype(np.float32) * 4
    params = SamplingParams(
        temperature=2, seed=1, logprobs=True, top_logprobs=5, logit_bias={7: 60.0}
    )
    tokens, logprobs = Sampler(301).sample(logits, [state(params, 301) for _ in range(2)])
    assert tokens == [7, 7] and logprobs is not None
    for row, found in zip(logits.astype(np.float64), logprobs, strict=True):
        expected = row - row.max() - math.log(np.exp(row - row.max()).sum())
        assert found is not None and found.token == 7
        assert found.logprob == pytest.approx(expected[7], abs=1e-5)
        best = np.argsort(-expected)[:5]
        assert [i for i, _ in found.top] == best.tolist()
        np.testing.assert_allclose([v for _, v in found.top], expected[best], atol=1e-5)
