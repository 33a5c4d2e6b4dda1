"""Decode attention over a latent cache, in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from triton_harness import make_problem, relative_error, run_case

from pumice.operators.mla_decode.spec import SPEC
from pumice.operators.mla_decode.triton_plan import MlaDecode
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
CASES = SPEC.cases(np.random.default_rng(0))
KERNEL = MlaDecode()


@pytest.mark.parametrize("index", range(len(CASES)))
@pytest.mark.parametrize(("name", "splits"), [("sm_90", 1), ("gfx942", 3)])
def test_cases(index: int, name: str, splits: int) -> None:
    attrs, inputs = CASES[index]
    target = TARGETS[name]
    favourite = KERNEL.configs(make_problem(SPEC, attrs, inputs), target)[0]
    got = run_case(SPEC, KERNEL, attrs, inputs, target, {**favourite, "SPLITS": splits})["out"]
    limit = SPEC.tolerance[inputs["q"].dtype.name]
    assert relative_error(got, SPEC.reference(attrs, inputs)["out"]) < limit


def test_many_shares() -> None:
    """Few rows of many shares: their columns are combined by several programs, most of the shares
    are empty."""
    attrs, inputs = CASES[0]
    target = TARGETS["sm_90"]
    problem = make_problem(SPEC, attrs, inputs)
    config = {**KERNEL.configs(problem, target)[0], "SPLITS": 32}
    assert KERNEL.plan(problem, target, config).launches[1].grid == (2 * 8, 2, 1)
    got = run_case(SPEC, KERNEL, attrs, inputs, target, config)["out"]
    limit = SPEC.tolerance[inputs["q"].dtype.name]
    assert relative_error(got, SPEC.reference(attrs, inputs)["out"]) < limit


def test_refusals() -> None:
    attrs, inputs = CASES[0]
    problem = make_problem(SPEC, attrs, inputs)
    why = KERNEL.supports(problem, TARGETS["gfx1100"])
    assert why is not None and "registers" in why
    for name, spec, word in (
        ("q", TensorSpec((2, 8, 576), "float32"), "float32"),
        ("k_cache", TensorSpec((4, 16, 512), "bfloat16"), "576"),
        ("context_len", TensorSpec((3,), "int32"), "3 rows"),
        ("block_table", TensorSpec((2, 4), "int64"), "int64"),
    ):
        changed = Problem(SPEC.name, {**problem.tensors, name: spec}, attrs)
        why = KERNEL.supports(changed, TARGETS["sm_90"])
        assert why is not None and word in why
    changed = Problem(SPEC.name, problem.tensors, {"value_dim": 500})
    why = KERNEL.supports(changed, TARGETS["sm_90"])
    assert why is not None and "500" in why
