"""moe_gemm's kernels for Hopper, as NumPy and in Triton's interpreter, against float64: experts
without tokens, of one tile and of many, of half a tile; entries of experts elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gluon_numpy import run
from gluon_warps import Warps
from triton_harness import interpret, make_problem, poisoned, relative_error, to_numpy, to_torch

from pumice.operators.moe_gemm.hopper_plan import MoeSpecialized
from pumice.operators.moe_gemm.spec import SPEC, tensors, values_of
from pumice.operators.triton.plan import Launch, Plan, Problem
from pumice.targets import get_target

HOPPER = get_target("sm_90")
KERNEL = MoeSpecialized()


def _inputs(
    tokens: int, experts: int, topk: int, k: int, f: int, dtype: str, favour: float
) -> dict[str, np.ndarray]:
    """favour: how much likelier the first experts are; 0 for all alike."""
    rng = np.random.default_rng(tokens * k + f)
    inputs = values_of(tensors(tokens, experts, topk, k, f, dtype), rng)
    scores = rng.random((tokens, experts), np.float32) - favour * np.arange(experts)
    ids = np.argsort(-scores, axis=1)[:, :topk].astype(np.int32)
    if tokens > 4:
        ids[1, 0], ids[2] = -1, experts  # elsewhere: one of a token's experts, all of them
    return inputs | {"ids": ids}


def _step(launch: Launch, problem: Problem, arrays: dict[str, np.ndarray]) -> None:
    """One launch, in the form that runs its language."""
    if launch.kernel.is_gluon():
        run(launch, arrays, Warps)
        return
    given = {name: to_torch(array) for name, array in arrays.items()}
    interpret(problem, Plan((launch,)), given)
    for value in set(launch.arguments.values()):
        if isinstance(value, str):
            arrays[value] = to_numpy(given[value])


@pytest.mark.parametrize(
    ("units", "case"),
    [
        (2, (40, 3, 2, 256, 128, "float8_e4m3fn", 0.0)),
        (3, (300, 3, 1, 128, 256, "float8_e4m3fn", 0.4)),
        (1, (140, 2, 1, 384, 128, "float8_e4m3fn", 2.0)),
        (4, (0, 4, 2, 128, 128, "float8_e4m3fn", 0.0)),
        (2, (200, 3, 2, 200, 136, "bfloat16", 0.3)),
        (3, (150, 5, 1, 320, 72, "float16", 0.5)),
    ],
    ids=str,
)  # fmt: skip
def test_experts(units: int, case: Any) -> None:
    inputs = _inputs(*case)
    problem = make_problem(SPEC, {}, inputs)
    target = replace(HOPPER, compute_units=units)
    assert KERNEL.supports(problem, target) is None
    expected = SPEC.reference({}, inputs)["out"]
    configs = KERNEL.configs(problem, target)
    for config in (configs[0], configs[-1]):
        plan = KERNEL.plan(problem, target, config)
        arrays = {**inputs, "out": poisoned(problem["out"])}
        for name, spec in plan.workspaces.items():
            arrays[name] = poisoned(spec)
        named = replace(problem, tensors={**problem.tensors, **plan.workspaces})
        for launch in plan.launches:
            _step(launch, named, arrays)
        error = relative_error(arrays["out"], expected)
        assert error <= SPEC.tolerance[arrays["out"].dtype.name]
