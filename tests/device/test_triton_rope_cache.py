"""Rotary embedding with normalization and cache append, in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from triton_harness import make_problem, relative_error, run_case

from pumice.operators.rope_cache.spec import SPEC
from pumice.operators.rope_cache.triton_plan import RopeCache
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
CASES = SPEC.cases(np.random.default_rng(0))
KERNEL = RopeCache()


@pytest.mark.parametrize("index", range(len(CASES)))
@pytest.mark.parametrize("config", [0, -1])
def test_cases(index: int, config: int) -> None:
    attrs, inputs = CASES[index]
    target = TARGETS["sm_90"]
    chosen = KERNEL.configs(make_problem(SPEC, attrs, inputs), target)[config]
    got = run_case(SPEC, KERNEL, attrs, inputs, target, chosen)
    expected = SPEC.reference(attrs, inputs)
    assert got.keys() == expected.keys()
    for name, array in got.items():
        limit = SPEC.tolerance[array.dtype.name]
        assert relative_error(array, expected[name]) < limit, name


def test_rows_without_a_token_stay() -> None:
    attrs, inputs = CASES[0]
    got = run_case(SPEC, KERNEL, attrs, inputs, TARGETS["sm_90"])
    free = np.ones(48, bool)
    free[inputs["slots"][inputs["slots"] >= 0]] = False
    for name in ("k_cache", "v_cache"):
        before = inputs[name].reshape(48, -1).view(np.uint16)
        assert np.array_equal(got[name].reshape(48, -1).view(np.uint16)[free], before[free])


def test_refusals() -> None:
    attrs, inputs = CASES[4]
    problem = make_problem(SPEC, attrs, inputs)
    why = KERNEL.supports(problem, TARGETS["sm_86"])
    assert why is not None and "float8_e4m3fn" in why
    for name, spec, word in (
        ("inv_freq", TensorSpec((40,), "float32"), "at most 32"),
        ("slots", TensorSpec((8,), "int32"), "8 rows"),
        ("positions", TensorSpec((9,), "float32"), "positions"),
        ("v_cache", TensorSpec((3, 8, 2, 64), "float8_e4m3fn"), "differ"),
        ("k_scale", TensorSpec((3,), "float32"), "k_scale"),
    ):
        changed = Problem(SPEC.name, {**problem.tensors, name: spec}, attrs)
        why = KERNEL.supports(changed, TARGETS["sm_90"])
        assert why is not None and word in why
