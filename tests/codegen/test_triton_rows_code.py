"""Quantization and gated activations compile for GPUs: wide loads, nothing spilled."""

from __future__ import annotations

import re
from typing import Any

import pytest
from triton_code import GPU_TARGETS, compiled, problem_of

from pumice.operators.activation_mul.spec import SPEC as ACTIVATION
from pumice.operators.quantize_fp8.dequantize_spec import SPEC as DEQUANTIZE_SPEC
from pumice.operators.quantize_fp8.spec import SPEC
from pumice.operators.registry import triton_kernels_of
from pumice.operators.triton.build import build_plan
from pumice.operators.triton.plan import TensorSpec
from pumice.targets import Target, get_target

WIDE = (4096, 14336)
SOME = [get_target(name) for name in ("gfx942", "gfx1100", "sm_90")]


def _compile(spec: Any, attrs: dict[str, Any], inputs: Any, target: Target) -> None:
    problem = problem_of(spec, attrs, inputs)
    kernels = [k for k in triton_kernels_of(spec.name) if k.supports(problem, target) is None]
    assert kernels
    for kernel in kernels:
        binaries = compiled(kernel, problem, target)
        if target.api == "rocm":
            wide = "_load_b128" if target.wave == 32 else "_load_dwordx4"
        else:
            wide = r"ld\.global(\.\S+)?\.v4\.b32"
        assert spec is DEQUANTIZE_SPEC or re.search(wide, binaries[-1].assembly)


@pytest.mark.parametrize("target", GPU_TARGETS, ids=lambda t: t.name)
def test_gated_activation_quantized_by_group(target: Target) -> None:
    fp8 = target.api == "rocm" or "float8_e4m3fn" in target.dtypes
    attrs = {"activation": "silu", "quantize": "group"}
    attrs["out_dtype"] = "float8_e4m3fn" if fp8 else "int8"
    x = {"x": TensorSpec((4096, 28672), "bfloat16")}
    _compile(ACTIVATION, attrs, x, target)


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
@pytest.mark.parametrize("mode", ["tensor", "token", "group"])
def test_quantize(mode: str, target: Target) -> None:
    attrs = {"quantize": mode, "out_dtype": "float8_e4m3fn"}
    _compile(SPEC, attrs, {"x": TensorSpec(WIDE, "bfloat16")}, target)


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
def test_dequantize(target: Target) -> None:
    attrs = {"out_dtype": "bfloat16", "row_group": 128, "column_group": 128}
    inputs = {
        "x": TensorSpec((1024, 4096), "float8_e4m3fn"),
        "scales": TensorSpec((8, 32), "float32"),
    }
    _compile(DEQUANTIZE_SPEC, attrs, inputs, target)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_other_activations(activation: str) -> None:
    x = {"x": TensorSpec((4096, 2048), "float16")}
    _compile(ACTIVATION, {"activation": activation}, x, get_target("gfx1100"))


@pytest.mark.parametrize("mode", ["tensor", "token"])
def test_beginning_early(mode: str) -> None:
    """Nothing is read or written until the launch in front is done, but x a second time."""
    target = get_target("sm_90")
    attrs = {"quantize": mode, "out_dtype": "float8_e4m3fn"}
    problem = problem_of(SPEC, attrs, {"x": TensorSpec(WIDE, "bfloat16")})
    for kernel in triton_kernels_of("quantize_fp8"):
        if kernel.supports(problem, target) is not None:
            continue
        plan = kernel.plan(problem, target, kernel.configs(problem, target)[0])
        for index, binary in enumerate(build_plan(problem, plan, target)):
            assert binary.metadata.launch_pdl
            before, wait, after = binary.assembly.partition("griddepcontrol.wait")
            assert wait and "st.global" in after and "st.global" not in before
            assert ("ld.global" in before) == (index == 1)
