"""Rotation, append and attention of new tokens in one launch, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from triton_harness import (
    interpret,
    make_problem,
    poisoned,
    relative_error,
    run_case,
    to_numpy,
    to_torch,
)

from pumice.operators.decode_attention.spec import SPEC
from pumice.operators.decode_attention.triton_plan import DecodeAttention
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
CASES = SPEC.cases(np.random.default_rng(0))
KERNEL = DecodeAttention()


def check(index: int, got: dict[str, np.ndarray]) -> None:
    attrs, inputs = CASES[index]
    for name, expected in SPEC.reference(attrs, inputs).items():
        limit = SPEC.tolerance[inputs["q"].dtype.name]
        if name != "out":
            limit = SPEC.tolerance[inputs[name].dtype.name]
        assert relative_error(got[name], expected) < limit, name


@pytest.mark.parametrize("index", range(len(CASES)))
def test_cases(index: int) -> None:
    """Targets take turns: they differ in tile sizes only."""
    target = TARGETS[("sm_90", "gfx1100", "gfx942", "gfx1201")[index % 4]]
    check(index, run_case(SPEC, KERNEL, *CASES[index], target))


@pytest.mark.parametrize("combines", [0, 1])
@pytest.mark.parametrize("index", [0, 1, 3, 4, 5])
def test_shares_of_the_keys(index: int, combines: int) -> None:
    """Five shares, of which short contexts need fewer, and slices of the values' columns."""
    target = TARGETS["gfx1100"]
    favourite = KERNEL.configs(make_problem(SPEC, *CASES[index]), target)[0]
    config = {**favourite, "SPLITS": 5, "BLOCK_V": 64, "BLOCK_N": 32, "COMBINES": combines}
    check(index, run_case(SPEC, KERNEL, *CASES[index], target, config))
