"""The sampler against a float64 implementation that sorts the whole vocabulary."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from pumice.engine import SamplingParams
from pumice.engine.candidates import largest, padded
from pumice.engine.sampler import NOT_FINITE, Sampler
from pumice.engine.sampling_state import SamplingState

NO_PROMPT = np.zeros(0, np.int32)


def state(vocab: int, prompt: Any = NO_PROMPT, **params: Any) -> SamplingState:
    return SamplingState(SamplingParams(**params), np.asarray(prompt, np.int32), vocab)


def reference(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    """Probabilities float64[V]: temperature, top-k, top-p of what is left, min-p."""
    z = logits.astype(np.float64) / params.temperature
    p = np.exp(z - z.max())
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    kept = order[: params.top_k] if params.top_k else order
    mass = sum(p[i] for i in kept)
    nucleus, reached = [], 0.0
    for i in kept:
        if reached >= params.top_p * mass:
            break
        nucleus.append(i)
        reached += p[i]
    nucleus = [i for i in nucleus if p[i] >= params.min_p * p[order[0]]]
    out = np.zeros_like(p)
    out[nucleus] = p[nucleus]
    return out / out.sum()


def drawn(sampler: Sampler, logits: np.ndarray, params: SamplingParams, count: int) -> np.ndarray:
    """Frequencies of `count` draws whose uniform numbers are evenly spaced: no chance in it."""
    even = iter((np.arange(count) + 0.5) / count)

    class Even(SamplingState):
        def uniform(self) -> float:
            return float(next(even))

    states = [Even(params, NO_PROMPT, len(logits)) for _ in range(8)]
    batch = np.tile(logits, (8, 1))
    counts = Counter(t for _ in range(count // 8) for t in sampler.sample(batch, states)[0])
    return np.array([counts[i] for i in range(len(logits))]) / count


@pytest.mark.parametrize("vocab", [1, 2, 63, 64, 65, 331, 5003])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 2.5},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 300},
        {"top_k": 10**6},
        {"top_p": 0.1},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"min_p": 0.05},
        {"min_p": 1.0},
        {"top_k": 20, "top_p": 0.7, "min_p": 0.02},
        {"top_p": 0.8, "min_p": 0.1, "temperature": 1.7},
    ],
)
def test_distribution(vocab: int, params: dict[str, Any]) -> None:
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal(vocab) * 2).astype(np.float32)
    full = SamplingParams(**{"temperature": 1.0, **params})
    count = 1600
    expected = reference(logits, full)
    found = drawn(Sampler(vocab), logits, full, count)
    # Evenly spaced draws hit an interval of length p at least p·n − 1 and at most p·n + 1 times.
    assert np.abs(found - expected).max() <= 1.01 / count + 1e-5
    assert (expected[found > 0] > 0).all()


@pytest.mark.parametrize("params", [{"top_k": 5}, {"top_p": 0.5}, {"top_p": 0.3, "min_p": 0.9}])
def test_equal_logits_are_cut_at_the_lowest_ids(params: dict[str, Any]) -> None:
    logits = np.zeros(200, np.float32)
    logits[[150, 3]] = 1.0
    full = SamplingParams(temperature=1.0, **params)
    found = drawn(Sampler(200), logits, full, 1600)
    expected = reference(logits, full)
    assert (found > 0).tolist() == (expected > 0).tolist()
    assert np.abs(found - expected).max() <= 1.01 / 1600


def test_minus_infinity_is_never_drawn() -> None:
    logits = np.full(130, -np.inf, np.float32)
    logits[[4, 77, 129]] = [0.5, 0.1, 0.3]
    for params in ({}, {"top_k": 50}, {"top_p": 0.99}, {"min_p": 0.001}):
        found = drawn(Sampler(130), logits, SamplingParams(temperature=1.0, **params), 800)
        assert set(np.flatnonzero(found)) == {4, 77, 129}


def test_greedy_takes_the_first_of_equals_in_any_batch() -> None:
    rng = np.random.default_rng(0)
    logits = rng.integers(0, 4, (9, 501)).astype(np.float32)
    expected = [int(np.flatnonzero(row == row.max())[0]) for row in logits]
    sampler = Sampler(501)
    plain = [state(501) for _ in logits]
    assert sampler.sample(logits, plain)[0] == expected
    for row, token in zip(logits, expected, strict=True):
        assert sampler.sample(row[None], [state(501)]) == ([token], None)
    mixed = [state(501) if i % 2 else state(501, temperature=1.0, seed=i) for i in range(9)]
    assert sampler.sample(logits, mixed)[0][1::2] == expected[1::2]
    tiny = [state(501, temperature=1e-6) for _ in logits]
    assert sampler.sample(logits, tiny)[0] == expected


@pytest.mark.parametrize(
    "params", [{}, {"top_k": 40}, {"top_p": 0.95}, {"min_p": 0.05}, {"repetition_penalty": 1.3}]
)
def test_seeds_are_reproducible_whatever_the_batch(params: dict[str, Any]) -> None:
    vocab = 3001
    rng = np.random.default_rng(5)
    logits = (rng.standard_normal((6, vocab)) * 3).astype(np.float32)
    prompt = rng.integers(0, vocab, 50)

    def mine() -> SamplingState:
        return state(vocab, prompt, temperature=1.5, seed=11, **params)

    sampler = Sampler(vocab)
    first = mine()
    alone = [sampler.sample(row[None], [first])[0][0] for row in logits]
    for size in (2, 8, 11):
        again, crowd = mine(), []
        for step, row in enumerate(logits):
            others = rng.standard_normal((size, vocab)).astype(np.float32)
            place = step % size
            others[place] = row
            states = [state(vocab, temperature=0.7 + i, top_p=0.5 + i / 30) for i in range(size)]
            states[place] = again
            crowd.append(Sampler(vocab).sample(others, states)[0][place])
        assert crowd == alone
    other = state(vocab, prompt, temperature=1.5, seed=12, **params)
    assert [sampler.sample(row[None], [other])[0][0] for row in logits] != alone


def test_no_seed_differs() -> None:
    logits = np.zeros((1, 5000), np.float32)
    sampler = Sampler(5000)
    tokens = {sampler.sample(logits, [state(5000, temperature=1.0)])[0][0] for _ in range(6)}
    assert len(tokens) > 1


def test_penalties_and_bias() -> None:
    rng = np.random.default_rng(3)
    vocab = 300
    prompt, output = rng.integers(0, vocab, 40), rng.integers(0, vocab, 200)
    logits = (rng.standard_normal(vocab) * 3).astype(np.float32)
    bias = {7: 2.5, 9: -100.0}
    s = state(
        vocab, prompt, repetition_penalty=1.4, frequency_penalty=0.3, presence_penalty=-0.7,
        logit_bias=bias,
    )  # fmt: skip
    assert s.history is not None
    for token in output.tolist():
        s.history.append(token)
    expected = logits.astype(np.float64)
    for token in set(prompt.tolist()) | set(output.tolist()):
        expected[token] *= 1 / 1.4 if expected[token] > 0 else 1.4
    for token, count in Counter(output.tolist()).items():
        expected[token] -= 0.3 * count - 0.7
    for token, value in bias.items():
        expected[token] += value
    adjusted = logits.copy()
    s.adjust(adjusted)
    assert np.abs(adjusted - expected).max() < 1e-4
    before = logits.copy()
    assert Sampler(vocab).sample(logits[None], [s])[0] == [int(expected.argmax())]
    assert (logits == before).all(), "the executable's logits must not be changed"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_told(bad: float) -> None:
    logits = np.zeros((4, 100), np.float32)
    logits[1, 50] = logits[3, 2] = bad
    sampler = Sampler(100)
    states = [state(100), state(100), state(100, temperature=1.0, seed=1)]
    states.append(state(100, temperature=1.0, logprobs=True))
    tokens, logprobs = sampler.sample(logits, states)
    assert [t == NOT_FINITE for t in tokens] == [False, True, False, True]
    assert logprobs == [None] * 4
    assert sampler.sample(logits[1:2], states[:1]) == ([NOT_FINITE], None)
    assert sampler.sample(np.full((1, 100), -np.inf, np.float32), states[:1])[0] == [NOT_FINITE]


@pytest.mark.parametrize("vocab", [3, 64, 1009])
def test_logprobs_are_the_models_own(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal((2, vocab)) * 4).round(1).astype(np.float32)
    top = min(5, vocab)
    asked = state(vocab, temperature=3.0, seed=0, logprobs=True, top_logprobs=5, logit_bias={0: 50})
    tokens, found = Sampler(vocab).sample(logits, [state(vocab), asked])
    assert found is not None and found[0] is None and found[1] is not None
    exact = logits[1].astype(np.float64)
    exact -= exact.max()
    exact -= math.log(np.exp(exact).sum())
    assert tokens[1] == found[1].token
    assert abs(found[1].logprob - exact[tokens[1]]) < 1e-5
    order = sorted(range(vocab), key=lambda i: (-logits[1][i], i))[:top]
    assert [i for i, _ in found[1].top] == order
    assert all(abs(value - exact[i]) < 1e-5 for i, value in found[1].top)


def test_largest_needs_no_sort_of_the_vocabulary() -> None:
    rng = np.random.default_rng(1)
    for vocab in (1, 64, 100, 4097):
        row = np.full(padded(vocab), -np.inf, np.float32)
        row[:vocab] = rng.integers(0, 50, vocab)
        order = sorted(range(vocab), key=lambda i: (-row[i], i))
        for k in {1, vocab, min(vocab, 30), max(1, vocab // 2)}:
            assert largest(row, k).tolist() == order[:k]
