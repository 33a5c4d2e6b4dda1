"""Products of 8-bit values compile for Hopper without one. Numbers are compared as NumPy
(`tests/device/test_gluon_gemm_8bit.py`) and on the device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from matmul_code import check_plan

from pumice.operators.gemm_fp8.hopper_plan import Fp8Specialized, Int8Specialized
from pumice.operators.gemm_fp8.spec import tensors
from pumice.operators.registry import get_spec
from pumice.operators.triton.plan import Problem, TensorSpec, make_problem
from pumice.targets import get_target
from pumice.targets.gpu import GPU_TARGETS

HOPPER = get_target("sm_90")
KERNELS = {"gemm_fp8": Fp8Specialized(), "gemm_int8": Int8Specialized()}
DTYPES = {"gemm_fp8": "float8_e4m3fn", "gemm_int8": "int8"}
FAST = {"fast_accum": True}


def product(
    operator: str, m: int, n: int, k: int, attrs: Mapping[str, Any] = {}, **more: TensorSpec
) -> Problem:
    inputs = {**tensors(m, n, k, DTYPES[operator]), **more}
    return make_problem(get_spec(operator), attrs, inputs)


@pytest.mark.parametrize("bn", [128, 192, 256])
@pytest.mark.parametrize(
    ("operator", "attrs", "widths", "kind"),
    [
        ("gemm_fp8", {}, {128: 128, 192: 64, 256: 128}, "f32.e4m3.e4m3"),
        ("gemm_fp8", FAST, {128: 128, 192: 64, 256: 256}, "f32.e4m3.e4m3"),
        ("gemm_int8", {}, {128: 128, 192: 64, 256: 128}, "s32.s8.s8"),
    ],
)
def test_two_groups_multiply_and_one_warp_loads(
    operator: str, attrs: Mapping[str, Any], widths: Mapping[int, int], kind: str, bn: int
) -> None:
    problem, kernel = product(operator, 4096, 7168, 2048, attrs), KERNELS[operator]
    config = next(c for c in kernel.configs(problem, HOPPER) if c["BN"] == bn)
    (binary,) = check_plan(kernel, problem, HOPPER, config)
    assert binary.threads == 12 * 32
    text = binary.assembly
    assert f"wgmma.mma_async.sync.aligned.m64n{widths[bn]}k32.{kind}" in text
    assert text.count("setmaxnreg.inc") >= 2
    # Results leave by the accelerator: a group waits for the buffer, not for its own stores.
    assert "stmatrix" in text and "cp.async.bulk.tensor.2d.global.shared::cta" in text
    assert not re.search(r"\tst\.global\.v4", text)


def test_an_epilogue_with_everything() -> None:
    more = {
        "bias": TensorSpec((1001,), "bfloat16"), "residual": TensorSpec((300, 1001), "float16"),
        "x_scale": TensorSpec((), "float32"),
    }  # fmt: skip
    problem = product("gemm_fp8", 300, 1001, 464, {"activation": "silu"}, **more)
    config = next(c for c in KERNELS["gemm_fp8"].configs(problem, HOPPER) if c["BN"] == 128)
    (binary,) = check_plan(KERNELS["gemm_fp8"], problem, HOPPER, {**config, "early": 1})
    before, wait, _ = binary.assembly.partition("griddepcontrol.wait")
    assert wait and "tensormap" not in before and "ld.global" not in before
    assert "cp.async.bulk.tensor.2d.global" not in binary.assembly


@pytest.mark.parametrize("operator", KERNELS)
def test_reasons(operator: str) -> None:
    kernel = KERNELS[operator]
    for target in GPU_TARGETS:
        against = kernel.supports(product(operator, 4096, 4096, 4096), target)
        assert (against is None) == (target.name == "sm_90")
        assert against is None or "wgmma" in against or target.name in against
    spaced = TensorSpec((256, 4096), DTYPES[operator], (4100, 1))
    for problem, words in (
        (product(operator, 64, 4096, 4096), "64 rows"),
        (product(operator, 256, 4096, 4104), "multiples of 16 bytes"),
        (product(operator, 256, 4096, 4096, x=spaced), "multiples of 16 bytes"),
        (product(operator, 256, 4096, 0), "K is 0"),
        (product(operator, 256, 256, 256, x_scale=TensorSpec((2,), "float32")), "x_scale"),
        (make_problem(get_spec(operator), {}, tensors(256, 256, 256, "float8_e4m3fnuz")),
         "float8_e4m3fnuz"),
    ):  # fmt: skip
        assert words in str(kernel.supports(problem, HOPPER))
    for m, k in ((0, 4096), (300, 4112), (129, 128)):
        assert kernel.supports(product(operator, m, 4096, k), HOPPER) is None
