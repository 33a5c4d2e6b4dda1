"""Products of 8-bit values on Hopper as NumPy, against float64: every form of scales, sums that
leave the matrix unit and sums that stay, results that the accelerator stores or cannot store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gluon_numpy import run
from gluon_warps import Warps
from triton_harness import make_problem, poisoned, relative_error

from pumice.operators.gemm_fp8.hopper_plan import Fp8Specialized, Int8Specialized
from pumice.operators.registry import get_spec
from pumice.targets import get_target

HOPPER = get_target("sm_90")
KERNELS = {"gemm_fp8": Fp8Specialized(), "gemm_int8": Int8Specialized()}


def _inputs(
    operator: str, m: int, n: int, k: int, x_shape: Any, w_shape: Any, *parts: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """parts: optional inputs, and values of attributes."""
    rng = np.random.default_rng(m * n + k)
    inputs = {}
    for name, rows in (("x", m), ("w", n)):
        values = rng.standard_normal((rows, k), np.float32)
        if operator == "gemm_int8":
            inputs[name] = np.round(values * 40).clip(-128, 127).astype(np.int8)
        else:
            inputs[name] = values.astype(ml_dtypes.float8_e4m3fn)
    for name, shape in (("x_scale", x_shape), ("w_scale", w_shape)):
        if shape is not None:
            inputs[name] = np.asarray(np.exp(rng.standard_normal(shape, np.float32)) / 40)
    if "bias" in parts:
        inputs["bias"] = rng.standard_normal(n, np.float32).astype(ml_dtypes.bfloat16)
    if "residual" in parts:
        inputs["residual"] = rng.standard_normal((m, n), np.float32)
    kinds = {"silu": "activation", "float16": "out_dtype", "float32": "out_dtype"}
    attrs: dict[str, Any] = {kinds[part]: part for part in parts if part in kinds}
    if "fast_accum" in parts:
        attrs["fast_accum"] = True
    return attrs, inputs


@pytest.mark.parametrize("columns", [128, 192, 256])
@pytest.mark.parametrize(
    ("units", "case"),
    [
        (2, (300, 456, 256, (300, 1), (456, 1))),
        (3, (129, 584, 640, (), (584,), "silu", "fast_accum")),
        (1, (256, 320, 128, (256,), (1, 1), "bias", "float16")),
        (4, (140, 301, 144, None, (301, 1), "residual", "bias", "fast_accum")),
        (2, (257, 448, 400, (257, 1), None, "float32")),
    ],
    ids=str,
)
@pytest.mark.parametrize("operator", KERNELS)
def test_tiles(operator: str, units: int, case: Any, columns: int) -> None:
    attrs, inputs = _inputs(operator, *case)
    if operator == "gemm_int8":
        attrs.pop("fast_accum", None)
    spec, kernel = get_spec(operator), KERNELS[operator]
    problem = make_problem(spec, attrs, inputs)
    target = replace(HOPPER, compute_units=units)
    assert kernel.supports(problem, target) is None
    config = next(c for c in kernel.configs(problem, target) if c["BN"] == columns)
    plan = kernel.plan(problem, target, config)
    out = poisoned(problem["out"])
    arrays = {**inputs, "out": out} | {name: poisoned(s) for name, s in plan.workspaces.items()}
    for launch in plan.launches:
        run(launch, arrays, Warps)
    expected = spec.reference(attrs, inputs)["out"]
    assert relative_error(out, expected) <= spec.tolerance[out.dtype.name]


def test_integers_are_exact() -> None:
    """The largest sums that there are."""
    attrs, inputs = _inputs("gemm_int8", 129, 140, 2048, None, None, "float32")
    inputs["x"][...] = inputs["w"][...] = -128
    inputs["w"][:, 0] = 127
    spec, kernel = get_spec("gemm_int8"), KERNELS["gemm_int8"]
    problem = make_problem(spec, attrs, inputs)
    target = replace(HOPPER, compute_units=2)
    plan = kernel.plan(problem, target, kernel.configs(problem, target)[0])
    arrays = {**inputs, "out": poisoned(problem["out"])}
    arrays |= {name: poisoned(s) for name, s in plan.workspaces.items()}
    run(plan.launches[0], arrays, Warps)
    exact = inputs["x"].astype(np.int64) @ inputs["w"].astype(np.int64).T
    assert (arrays["out"] == exact.astype(np.float32)).all()


def test_chosen_as_written() -> None:
    """Floats leave the matrix unit after every block but where speed is asked for."""
    _, inputs = _inputs("gemm_fp8", 129, 128, 128, (), ())
    for attrs, leaves in (({}, True), ({"fast_accum": True}, False), ({"fast_accum": False}, True)):
        problem = make_problem(get_spec("gemm_fp8"), attrs, inputs)
        kernel = KERNELS["gemm_fp8"]
        plan = kernel.plan(problem, HOPPER, kernel.configs(problem, HOPPER)[0])
        assert plan.launches[0].constants["PROMOTE"] == leaves
