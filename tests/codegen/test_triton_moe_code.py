"""Routing and experts compile for every kind of GPU, at real models' sizes."""

from __future__ import annotations

import pytest
from matmul_code import check_resources, problem_of
from triton_code import GPU_TARGETS

from pumice.operators.moe_gemm.spec import tensors
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.build import build_plan
from pumice.operators.triton.plan import TensorSpec
from pumice.targets import Target

SOME = [t for t in GPU_TARGETS if t.name in ("gfx942", "gfx1100", "gfx1201", "sm_90")]
(ROWS,) = triton_kernels_of("topk_softmax")
_, GROUPED = triton_kernels_of("moe_gemm")
DEEPSEEK = (256, 8, 7168, 2048, "float8")
QWEN = (128, 8, 2048, 768, "bfloat16")
MATRIX = {"mfma": "v_mfma_", "wmma": "v_wmma_", "wgmma": "wgmma"}


@pytest.mark.parametrize("target", SOME, ids=lambda target: target.name)
def test_deepseek_routing(target: Target) -> None:
    attrs = {"topk": 8, "scoring": "sigmoid", "groups": 8, "groups_kept": 4, "scale": 2.5}
    inputs = {"logits": TensorSpec((65536, 256), "float32"), "bias": TensorSpec((256,), "float32")}
    problem = problem_of(get_spec("topk_softmax"), attrs, inputs)
    assert ROWS.supports(problem, target) is None
    plan = ROWS.plan(problem, target, ROWS.configs(problem, target)[0])
    for binary in build_plan(problem, plan, target):
        check_resources(binary, target, target.name)


@pytest.mark.parametrize(
    ("target", "tokens", "shape"),
    [
        (target, *((65536, DEEPSEEK) if target.name in ("gfx942", "sm_90") else (4, QWEN)))
        for target in SOME
    ]
    + [(SOME[-1], 8192, (8, 2, 4096, 14336, "bfloat16"))],
)
def test_experts(target: Target, tokens: int, shape: tuple[int, int, int, int, str]) -> None:
    *sizes, dtype = shape
    if dtype == "float8":
        found = sorted(name for name in target.dtypes if name.startswith("float8_e4m3"))
        dtype = found[0] if found else "bfloat16"
    problem = problem_of(get_spec("moe_gemm"), {}, tensors(tokens, *sizes, dtype))
    assert GROUPED.supports(problem, target) is None
    config = GROUPED.configs(problem, target)[0]
    binaries = build_plan(problem, GROUPED.plan(problem, target, config), target)
    for binary in binaries:
        check_resources(binary, target, (binary.symbol, dict(config), target.name))
    matrix = (
        MATRIX[str(target.matrix_unit)] if config["BM"] >= 64 or target.api == "rocm" else "mma"
    )
    assert all(matrix in binary.assembly for binary in binaries[3:5])
