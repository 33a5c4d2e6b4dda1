"""Products of 8-bit floats and integers compile for every GPU that has or can decode them."""

from __future__ import annotations

import pytest
from matmul_code import check_plan, problem_of
from triton_code import GPU_TARGETS, ROCM_TARGETS

from pumice.operators.gemm_fp8.spec import tensors
from pumice.operators.gemm_fp8_block.spec import tensors as block_tensors
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.plan import Problem
from pumice.targets import Target

FN, FNUZ = "float8_e4m3fn", "float8_e4m3fnuz"
OPERATORS = ("gemm_fp8_block", "gemm_fp8", "gemm_int8")
KERNELS = {kernel.name: kernel for name in OPERATORS for kernel in triton_kernels_of(name)}
HAVE_FP8 = [t for t in GPU_TARGETS if t.api == "rocm" or FN in t.dtypes]


def block(m: int, n: int, k: int, dtype: str = FN) -> Problem:
    return problem_of(get_spec("gemm_fp8_block"), {}, block_tensors(m, n, k, dtype))


FEW = [target for target in HAVE_FP8 if target.name in ("gfx942", "gfx1201", "sm_90")]


@pytest.mark.parametrize(
    ("target", "kind", "m"),
    [(target, "tiled", 4096) for target in HAVE_FP8]
    + [(target, kind, m) for target in FEW for kind, m in (("split_k", 16), ("gemv", 1))],
)
def test_block_scales(target: Target, kind: str, m: int) -> None:
    problem = block(m, 7168, 2048)
    check_plan(KERNELS[f"gemm_fp8_block.triton.{kind}"], problem, target, matrix=kind != "gemv")


@pytest.mark.parametrize("name", ["gfx942", "gfx1100"])
def test_the_type_of_cdna3(name: str) -> None:
    target = next(target for target in ROCM_TARGETS if target.name == name)
    (binary,) = check_plan(
        KERNELS["gemm_fp8_block.triton.tiled"], block(1024, 4096, 7168, FNUZ), target
    )
    assert ("fp8_fp8" in binary.assembly) == (FNUZ in target.dtypes)


@pytest.mark.parametrize("target", FEW, ids=lambda target: target.name)
def test_scales_of_tokens_and_channels(target: Target) -> None:
    problem = problem_of(get_spec("gemm_fp8"), {}, tensors(2048, 4096, 4096, FN))
    check_plan(KERNELS["gemm_fp8.triton.tiled"], problem, target)


@pytest.mark.parametrize(
    ("target", "kind", "m"),
    [(target, "tiled", 2048) for target in GPU_TARGETS[1::4]] + [(FEW[0], "gemv", 2)],
)
def test_integers(target: Target, kind: str, m: int) -> None:
    problem = problem_of(get_spec("gemm_int8"), {}, tensors(m, 4096, 4096, "int8"))
    check_plan(KERNELS[f"gemm_int8.triton.{kind}"], problem, target, matrix=kind != "gemv")


def test_sums_left_in_the_matrix_unit() -> None:
    (target,) = (target for target in GPU_TARGETS if target.matrix_unit == "wgmma")
    problem = problem_of(get_spec("gemm_fp8"), {"fast_accum": True}, tensors(4096, 4096, 4096, FN))
    (binary,) = check_plan(KERNELS["gemm_fp8.triton.tiled"], problem, target)
    assert binary.symbol == "gemm_tile"
    assert "f32.e4m3.e4m3" in binary.assembly
