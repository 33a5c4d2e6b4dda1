"""Products of 8-bit floats and integers in Triton's interpreter."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from matmul_interpreter import check_case, check_strided
from triton_harness import make_problem, run_case

from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets.gpu import GPU_TARGETS

OPERATORS = ("gemm_fp8_block", "gemm_fp8", "gemm_int8")
TARGETS = {target.name: target for target in GPU_TARGETS}
KERNELS = {kernel.name: kernel for name in OPERATORS for kernel in triton_kernels_of(name)}
KERNELS = {n: k for n, k in KERNELS.items() if not n.endswith("specialized")}  # in Gluon
CASES = {name: get_spec(name).cases(np.random.default_rng(7)) for name in OPERATORS}


def _target(dtype: str, index: int) -> str:
    """Native, upcast, in turns; CDNA3's type only where Triton has it."""
    names = ("gfx942", "gfx90a") if dtype == "float8_e4m3fnuz" else ("sm_90", "gfx1201", "gfx1100")
    return names[index % len(names)]


SUPPORTED = [
    (kernel, index, target)
    for kernel in KERNELS
    for name in [kernel.partition(".")[0]]
    for index, (attrs, inputs) in enumerate(CASES[name])
    for target in [_target(inputs["x"].dtype.name, index)]
    if KERNELS[kernel].supports(make_problem(get_spec(name), attrs, inputs), TARGETS[target])
    is None
]


def test_every_case_has_a_kernel() -> None:
    whole = {(kernel, index) for kernel, index, _ in SUPPORTED if kernel.endswith("tiled")}
    assert whole == {
        (f"{name}.triton.tiled", index) for name in OPERATORS for index in range(len(CASES[name]))
    }


@pytest.mark.parametrize(("kernel", "index", "target"), SUPPORTED)
def test_cases(kernel: str, index: int, target: str) -> None:
    spec = get_spec(kernel.partition(".")[0])
    attrs, inputs = CASES[spec.name][index]
    configs = KERNELS[kernel].configs(make_problem(spec, attrs, inputs), TARGETS[target])
    check_case(spec, KERNELS[kernel], attrs, inputs, TARGETS[target])
    if index % 2:
        check_case(spec, KERNELS[kernel], attrs, inputs, TARGETS[target], configs[-1])


def test_columns_in_halves() -> None:
    """Two parts of a tile, the second one partly or wholly beyond N."""
    spec = get_spec("gemm_fp8_block")
    rng = np.random.default_rng(2)
    config = {"BM": 16, "BN": 256, "BK": 64, "warps": 4, "stages": 2, "split": 2, "halves": 2}
    for n in (300, 128):
        attrs, inputs = next(case for case in spec.cases(rng) if case[1]["x"].shape == (17, 512))
        rows = np.arange(n) % inputs["w"].shape[0]
        inputs |= {"w": inputs["w"][rows], "w_scale": inputs["w_scale"][: -(-n // 128)]}
        del inputs["residual"]
        for kind in ("tiled", "split_k"):
            kernel = KERNELS[f"gemm_fp8_block.triton.{kind}"]
            check_case(spec, kernel, attrs, inputs, TARGETS["sm_90"], config)


@pytest.mark.parametrize("kernel", [name for name in KERNELS if not name.endswith("stream_k")])
def test_rows_with_gaps(kernel: str) -> None:
    """Also scales whose rows have gaps, where scales have rows."""
    spec = get_spec(kernel.partition(".")[0])
    attrs, inputs = next(c for c in CASES[spec.name] if c[1]["x"].shape[0] in (2, 3, 8))
    gapped = ("x", "w", "out", "residual")
    gapped += ("x_scale", "w_scale") if spec.name == "gemm_fp8_block" else ()
    target = TARGETS["gfx942" if "fnuz" in inputs["x"].dtype.name else "sm_90"]
    problem = make_problem(spec, attrs, inputs)
    if KERNELS[kernel].supports(problem, target) is None:
        check_strided(spec, KERNELS[kernel], attrs, inputs, target, gapped)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e4m3fnuz"])
def test_every_code_is_decoded(dtype: str) -> None:
    """All 256 values, NaN included, on a device that has none of these types."""
    codes = np.arange(256, dtype=np.uint8).view(np.dtype(getattr(ml_dtypes, dtype)))
    one = np.ones((1, 128), codes.dtype)
    rows = np.zeros((256, 128), codes.dtype)
    rows[:, 5] = codes
    inputs = {
        "x": one, "w": rows,
        "x_scale": np.ones((1, 1), np.float32), "w_scale": np.ones((2, 1), np.float32),
    }  # fmt: skip
    spec = get_spec("gemm_fp8_block")
    for kind in ("tiled", "gemv"):
        kernel = KERNELS[f"gemm_fp8_block.triton.{kind}"]
        got = run_case(spec, kernel, {"out_dtype": "float32"}, inputs, TARGETS["gfx1100"])["out"]
        np.testing.assert_array_equal(got[0], codes.astype(np.float32))


def test_two_runs_are_bit_equal() -> None:
    spec = get_spec("gemm_fp8_block")
    attrs, inputs = CASES[spec.name][4]
    kernel = KERNELS["gemm_fp8_block.triton.split_k"]
    first, second = (run_case(spec, kernel, attrs, inputs, TARGETS["sm_90"]) for _ in range(2))
    assert first["out"].tobytes() == second["out"].tobytes()


@pytest.mark.parametrize(
    ("change", "target", "words"),
    [
        ({"x_scale": TensorSpec((4, 2), "float32")}, "sm_90", r"x_scale is float32 \(4, 2\)"),
        ({"w_scale": TensorSpec((1, 3), "float16")}, "sm_90", "w_scale is float16"),
        ({"x": TensorSpec((4, 300), "bfloat16")}, "sm_90", "x is bfloat16"),
        ({}, "sm_80", "Triton has no float8_e4m3fn for sm_80"),
    ],
)
def test_why_a_problem_is_refused(change: dict[str, Any], target: str, words: str) -> None:
    tensors = {
        "x": TensorSpec((4, 300), "float8_e4m3fn"), "w": TensorSpec((64, 300), "float8_e4m3fn"),
        "x_scale": TensorSpec((4, 3), "float32"), "w_scale": TensorSpec((1, 3), "float32"),
        "out": TensorSpec((4, 64), "bfloat16"),
    }  # fmt: skip
    kernel = KERNELS["gemm_fp8_block.triton.tiled"]
    reason = kernel.supports(Problem("gemm_fp8_block", tensors | change), TARGETS[target])
    assert reason is not None
    assert re.search(words, reason), reason
