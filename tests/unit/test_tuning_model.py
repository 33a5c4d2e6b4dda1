"""The analytic model of products: what it says against what was measured, and simple truths."""

from __future__ import annotations

import math

import pytest

from pumice.operators.registry import get_spec
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import GPU_TARGETS, Target, get_target
from pumice.tuning.database import DATA, read_rows
from pumice.tuning.gpu import candidates
from pumice.tuning.model import OPERATORS, estimate_s, favourite


def gemm(m: int, n: int, k: int, dtype: str = "bfloat16") -> Problem:
    inputs = {"x": TensorSpec((m, k), dtype), "w": TensorSpec((n, k), dtype)}
    return make_problem(get_spec("gemm"), {}, inputs)


@pytest.mark.parametrize("target", GPU_TARGETS, ids=lambda t: t.name)
def test_no_candidate_beats_the_floor(target: Target) -> None:
    spec = get_spec("gemm")
    assert spec.work is not None and target.bandwidth is not None
    for m in (1, 3, 64, 336, 4096):
        made = gemm(m, 4096, 4096)
        floor = spec.work(made).floor_s(target.bandwidth, target.peak)
        for _, config in candidates(made, target):
            seconds = estimate_s(made, target, config)
            assert seconds is not None and floor <= seconds < 0.1, (m, config)


@pytest.mark.parametrize("target", GPU_TARGETS, ids=lambda t: t.name)
def test_more_work_takes_longer(target: Target) -> None:
    for small, large in (((64, 4096, 4096), (64, 8192, 8192)), ((512, 4096, 64), (8192, 4096, 64))):
        times = []
        for size in (small, large):
            found = favourite(gemm(*size), target, candidates(gemm(*size), target))
            assert found is not None
            times.append(found[2])
        assert times[0] < times[1]


def test_few_tiles_are_split_and_many_are_not() -> None:
    """One tile of 64 × 64 over a long K keeps one unit of 132 busy; 4096 tiles keep all."""
    target = get_target("sm_90")
    few, many = gemm(64, 64, 65536), gemm(8192, 8192, 8192)
    tiled = [c for c in candidates(few, target) if "BM" in c[1]]
    chosen = favourite(few, target, tiled)
    assert chosen is not None and chosen[1]["split"] > 4
    chosen = favourite(many, target, candidates(many, target))
    assert chosen is not None and chosen[1]["split"] == 1


def test_operators_that_are_not_modelled() -> None:
    inputs = {"x": TensorSpec((8, 4096), "bfloat16"), "weight": TensorSpec((4096,), "bfloat16")}
    made = make_problem(get_spec("norm"), {"kind": "rms", "eps": 1e-5}, inputs)
    target = get_target("sm_90")
    assert estimate_s(made, target, {}) is None
    assert favourite(made, target, candidates(made, target)) is None


@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_against_rows_measured_on_an_h200(operator: str) -> None:
    """The fastest candidates' estimated and measured times agree within a factor of two on the
    average of logarithms."""
    target = get_target("sm_90")
    errors = []
    for row in read_rows(DATA / "sm_90" / f"{operator}.json"):
        if row.kernel.startswith("vendor."):
            continue
        inputs = {n: TensorSpec(d, row.dtypes[n]) for n, d in row.dims.items()}
        made = make_problem(get_spec(operator), row.attrs, inputs)
        seconds = estimate_s(made, target, row.config)
        assert seconds is not None
        errors.append(abs(math.log2(seconds * 1e6 / row.us)))
    assert len(errors) >= 8 and sum(errors) / len(errors) < 1.0
