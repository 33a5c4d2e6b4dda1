"""Every form of 4-bit weights (zeros, minima, one zero; 16-bit types; both packings) compiles
into weights for NVIDIA's GPUs, whose assembly neither the interpreter nor an emulator runs."""

from __future__ import annotations

from typing import Any

import pytest
from triton_code import problem_of

from pumice.operators.gemm_w4.dequantize_spec import SPEC as DEQUANTIZE
from pumice.operators.gemm_w4.spec import SPEC, bench_problem, weight_specs
from pumice.operators.gemm_w4.triton_plan import Dequantize, Tiled
from pumice.operators.triton.build import build_plan
from pumice.targets import get_target

H200 = get_target("sm_90")
FORMS = ["", "zeros", "mins"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("packing", ["rows", "blocks"])
def test_weights(packing: str, form: str, dtype: str) -> None:
    attrs: dict[str, Any] = {"group": 32, "zero": 0, "packing": packing, "out_dtype": dtype}
    problem = problem_of(DEQUANTIZE, attrs, weight_specs(64, 512, 32, form))
    kernel = Dequantize()
    assert kernel.supports(problem, H200) is None
    plan = kernel.plan(problem, H200, kernel.configs(problem, H200)[0])
    for binary in build_plan(problem, plan, H200):
        assert not binary.resources.spilled


@pytest.mark.parametrize("form", FORMS)
def test_products_in_bfloat16(form: str) -> None:
    _, attrs, inputs = bench_problem(16, 4096, 4096, 32, form, "bfloat16", "rows")
    problem = problem_of(SPEC, attrs, inputs)
    kernel = Tiled()
    plan = kernel.plan(problem, H200, kernel.configs(problem, H200)[0])
    assert any("wgmma" in one.assembly or "mma.sync" in one.assembly
               for one in build_plan(problem, plan, H200))  # fmt: skip
