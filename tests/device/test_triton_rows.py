"""quantize_fp8, dequantize_fp8 and activation_mul in Triton's interpreter, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_cases import check, runs
from triton_harness import interpret, make_problem, relative_error, to_numpy, to_torch

from pumice.operators.activation_mul.spec import SPEC as ACTIVATION
from pumice.operators.quantize_fp8.dequantize_spec import SPEC as DEQUANTIZE_SPEC
from pumice.operators.quantize_fp8.spec import SPEC
from pumice.operators.registry import triton_kernels_of
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import get_target

HOPPER, CDNA3 = get_target("sm_90"), get_target("gfx942")
RUNS = [
    (label, spec, *rest)
    for spec in (SPEC, DEQUANTIZE_SPEC, ACTIVATION)
    for label, *rest in runs(spec, (HOPPER, CDNA3))
]


@pytest.mark.parametrize("run", RUNS, ids=[run[0] for run in RUNS])
def test_case(run: Any) -> None:
    check(*run[1:])


@pytest.mark.parametrize("spec", [SPEC, DEQUANTIZE_SPEC, ACTIVATION], ids=lambda s: s.name)
def test_another_configuration(spec: Any) -> None:
    """Small tiles: many a row, partial ones at both edges, a loop with several blocks."""
    for attrs, inputs in spec.cases(np.random.default_rng(3)):
        for kernel in triton_kernels_of(spec.name):
            problem = make_problem(spec, attrs, inputs)
            if kernel.supports(problem, HOPPER) or inputs["x"].size > 4000:
                continue
            config = dict(kernel.configs(problem, HOPPER)[0])
            config |= {"rows": 2} if "rows" in config else {}
            config |= {"block": 128} if "block" in config else {}
            check(spec, kernel, attrs, inputs, HOPPER, config)


def test_scales_of_a_row_of_zeros_are_finite_and_codes_zero() -> None:
    for attrs, inputs in SPEC.cases(np.random.default_rng(3)):
        if len(inputs["x"]) > 2 and attrs["quantize"] == "token":
            got = SPEC.reference(attrs, inputs)
            assert not got["out"][1].astype(np.float32).any()
            assert got["scales"][1, 0] > 0


def test_power_of_two_scales() -> None:
    values = np.array([[1.0, 448.0], [448.5, 2.0], [0.0, 0.0]], np.float32)
    attrs = {"quantize": "token", "out_dtype": "float8_e4m3fn", "power_of_two": True}
    (kernel, *_) = triton_kernels_of("quantize_fp8")
    got = check(SPEC, kernel, attrs, {"x": values}, HOPPER)
    assert got["scales"][:2, 0].tolist() == [1.0, 2.0]


def test_a_strided_view() -> None:
    """Gate and up inside wider rows."""
    wide = np.random.default_rng(1).standard_normal((3, 400)).astype(np.float16)
    x = TensorSpec((3, 200), "float16", (400, 1), aligned=False)
    problem = Problem(
        "activation_mul", {"x": x, "out": TensorSpec((3, 100), "float16")}, {"activation": "silu"}
    )
    kernel = triton_kernels_of("activation_mul")[0]
    tensors = {"x": to_torch(wide)[:, 7:], "out": to_torch(np.zeros((3, 100), np.float16))}
    interpret(problem, kernel.plan(problem, HOPPER, kernel.configs(problem, HOPPER)[0]), tensors)
    expected = ACTIVATION.reference(problem.attrs, {"x": wide[:, 7:207]})["out"]
    assert relative_error(to_numpy(tensors["out"]), expected) < 1e-3


def test_refusals_say_what_is_allowed() -> None:
    kernel = triton_kernels_of("activation_mul")[0]
    specs = {"x": TensorSpec((2, 7), "float16"), "out": TensorSpec((2, 3), "float16")}
    assert "odd width 7" in str(
        kernel.supports(Problem("a", specs, {"activation": "silu"}), HOPPER)
    )
    assert "silu, gelu" in str(kernel.supports(Problem("a", specs, {"activation": "relu"}), HOPPER))
