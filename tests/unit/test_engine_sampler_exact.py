"""Evenly spaced uniform numbers instead of random ones: frequencies are probabilities, exactly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from pumice.engine import SamplingParams
from pumice.engine.candidates import largest, padded
from pumice.engine.sampler import Sampler
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


@pytest.mark.parametrize("vocab", [1, 64, 331, 5003])
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
        {"top_k": 200, "top_p": 0.97, "min_p": 0.2},
        {"top_p": 0.8, "min_p": 0.1, "temperature": 1.7},
    ],
)
def test_distribution(vocab: int, params: dict[str, Any]) -> None:
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal(vocab) * 2).astype(np.float32)
    full = SamplingParams(**{"temperature": 1.0, **params})
    count = 800
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


def test_no_seed_differs() -> None:
    logits = np.zeros((1, 5000), np.float32)
    sampler = Sampler(5000)
    tokens = {sampler.sample(logits, [state(5000, temperature=1.0)])[0][0] for _ in range(6)}
    assert len(tokens) > 1


def test_largest_needs_no_sort_of_the_vocabulary() -> None:
    rng = np.random.default_rng(1)
    for vocab in (1, 64, 100, 4097):
        row = np.full(padded(vocab), -np.inf, np.float32)
        row[:vocab] = rng.integers(0, 50, vocab)
        order = sorted(range(vocab), key=lambda i: (-row[i], i))
        for k in {1, vocab, min(vocab, 30), max(1, vocab // 2)}:
            assert largest(row, k).tolist() == order[:k]
