"""gated_gemm and batched_gemm compile for every kind of GPU."""

from __future__ import annotations

import pytest
from matmul_code import check_plan, problem_of
from triton_code import GPU_TARGETS

from pumice.operators.gemm_fp8_block.spec import tensors as block_tensors
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.plan import TensorSpec
from pumice.targets import Target

(GATED,) = triton_kernels_of("gated_gemm")
BATCHED = {kernel.name.rpartition(".")[2]: kernel for kernel in triton_kernels_of("batched_gemm")}
SOME = [t for t in GPU_TARGETS if t.name in ("gfx90a", "gfx942", "gfx1100", "gfx1201", "sm_80",
                                             "sm_90", "sm_100")]  # fmt: skip
FP8 = [t for t in SOME if t.name in ("gfx942", "gfx1201", "sm_90")]


@pytest.mark.parametrize("target", SOME, ids=lambda target: target.name)
def test_gate_and_up(target: Target) -> None:
    m = 16 if target.name == "gfx1201" else 4096
    inputs = {
        "x": TensorSpec((m, 4096), "bfloat16"),
        "w": TensorSpec((28672, 4096), "bfloat16"),
    }
    check_plan(GATED, problem_of(get_spec("gated_gemm"), {}, inputs), target)


@pytest.mark.parametrize("target", FP8, ids=lambda target: target.name)
def test_block_scales_of_gate_and_up(target: Target) -> None:
    inputs = block_tensors(2048, 36864, 7168)
    check_plan(GATED, problem_of(get_spec("gated_gemm"), {}, inputs), target)


@pytest.mark.parametrize("target", SOME[1::4], ids=lambda target: target.name)
@pytest.mark.parametrize(("kind", "m"), [("tiled", 128), ("gemv", 1)])
def test_absorbed_projection(target: Target, kind: str, m: int) -> None:
    inputs = {
        "x": TensorSpec((128, m, 128), "bfloat16", (192, 128 * 192, 1)),
        "w": TensorSpec((128, 512, 128), "bfloat16"),
    }
    problem = problem_of(get_spec("batched_gemm"), {}, inputs)
    check_plan(BATCHED[kind], problem, target, matrix=kind != "gemv")
