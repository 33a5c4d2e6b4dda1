"""fused_w4's kernel of one token on Hopper, as NumPy, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gluon_numpy import run
from triton_harness import make_problem, poisoned, relative_error

from pumice.operators.fused_w4.ring import Ring
from pumice.operators.fused_w4.spec import SPEC
from pumice.operators.gemm_w4.spec import make_weight
from pumice.targets import get_target

HOPPER = get_target("sm_90")


def _inputs(n: int, k: int, *parts: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    rng = np.random.default_rng(n + k)
    x = rng.standard_normal((1, k))
    x[0, :: k // 7] *= 300
    attrs: dict[str, Any] = {"group": 32, "zero": 7, "packing": "rows"}
    inputs = {"x": x.astype(np.float16), **make_weight(rng, n, k, 32, "")}
    if "norm" in parts:
        attrs |= {"eps": 1e-5, "dtype": "float16"}
        inputs["x"] = x.astype(np.float32)
        inputs["norm_weight"] = rng.uniform(0.5, 1.5, k).astype(np.float32)
    if "bias" in parts:
        inputs["bias"] = rng.standard_normal(n).astype(np.float16)
    if "residual" in parts:
        inputs["residual"] = rng.standard_normal((1, n)).astype(np.float32)
    if "silu" in parts:
        attrs["activation"] = "silu"
        inputs["scales"] = (inputs["scales"] / 16).astype(np.float16)  # gates around 0
    if "float32" in parts:
        attrs["out_dtype"] = "float32"
    return attrs, inputs


@pytest.mark.parametrize(
    ("units", "config", "case"),
    [
        (1, {"warps": 4, "stages": 3}, (37, 1152)),
        (2, {"warps": 4, "stages": 5}, (70, 1280, "norm")),
        (2, {"warps": 8, "stages": 2}, (100, 2176, "residual")),
        (3, {"warps": 4, "stages": 4, "held": 0}, (76, 1408, "norm", "silu")),
        (1, {"warps": 4, "stages": 6, "held": 0}, (33, 3200, "residual", "bias")),
        (2, {"warps": 1, "stages": 4}, (42, 512, "silu", "bias", "float32")),
        (9, {"warps": 2, "stages": 8}, (19, 512, "norm", "bias", "float32")),
    ],
    ids=str,
)
def test_products(units: int, config: Any, case: Any) -> None:
    attrs, inputs = _inputs(*case)
    problem = make_problem(SPEC, attrs, inputs)
    kernel, target = Ring(), replace(HOPPER, compute_units=units)
    assert kernel.supports(problem, target) is None
    plan = kernel.plan(problem, target, {"units": 1, "held": 1, "early": 3, **config})
    arrays = {
        name: inputs[name].copy() if name in inputs else poisoned(tensor)
        for name, tensor in problem.tensors.items()
    }
    for launch in plan.launches:
        run(launch, arrays)
    for name, expected in SPEC.reference(attrs, inputs).items():
        assert arrays[name].dtype == expected.dtype
        assert relative_error(arrays[name], expected) <= 1e-3
