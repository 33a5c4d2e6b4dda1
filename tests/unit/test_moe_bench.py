"""The floor of a mixture of experts counts the weights that tokens reach, and the benchmark's
tokens reach that many."""

from __future__ import annotations

import numpy as np
import pytest

from pumice.operators.moe_gemm import spec


@pytest.mark.parametrize(("tokens", "top", "experts"), [(1, 2, 8), (3, 2, 5), (16, 8, 128)])
def test_experts_reached_on_average(tokens: int, top: int, experts: int) -> None:
    rng = np.random.default_rng(3)
    counts = [
        len({e for _ in range(tokens) for e in rng.permutation(experts)[:top]}) for _ in range(400)
    ]
    assert spec.reached(tokens, top, experts) == pytest.approx(np.mean(counts), rel=0.03)


def test_none_is_reached_by_no_token() -> None:
    assert spec.reached(0, 2, 8) == 0.0


@pytest.mark.parametrize("label", [row[0] for row in spec.BENCH])
def test_benchmarks_reach_as_many(label: str) -> None:
    _, attrs, inputs = next(row for row in spec.BENCH if row[0] == label)
    ids = spec.bench_integers(attrs, inputs)["ids"]
    (tokens, top), experts = inputs["ids"].shape, inputs["w1"].shape[0]
    assert ids.shape == (tokens, top) and ids.dtype == np.int32
    assert all(len(set(row)) == top for row in ids[:64].tolist())
    assert abs(len(np.unique(ids)) - spec.reached(tokens, top, experts)) <= 0.5
