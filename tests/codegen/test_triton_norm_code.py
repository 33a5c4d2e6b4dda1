"""norm compiles for every GPU: wide loads, nothing spilled."""

from __future__ import annotations

import pytest
from triton_code import GPU_TARGETS, compiled, problem_of

from pumice.operators.norm.spec import SPEC
from pumice.operators.norm.triton_plan import NormLoop, NormRows
from pumice.operators.triton.plan import TensorSpec, TritonKernel
from pumice.targets import Target

ROWS = (
    (4096, 4096, {"kind": "rms"}),
    (64, 16384, {"kind": "rms", "quantize": "group"}),
    (4096, 8192, {"kind": "layer", "quantize": "token"}),
)


SOME = ("gfx942", "gfx1100", "sm_86", "sm_90")


@pytest.mark.parametrize(
    ("case", "target"),
    [
        (case, target)
        for case in range(len(ROWS))
        for target in GPU_TARGETS
        if case == 1 or target.name in SOME
    ],
    ids=lambda value: value.name if isinstance(value, Target) else str(value),
)
def test_rows(case: int, target: Target) -> None:
    rows, width, attrs = ROWS[case]
    fp8 = target.api == "rocm" or "float8_e4m3fn" in target.dtypes
    attrs = {"eps": 1e-5, **attrs}
    if "quantize" in attrs:
        attrs["out_dtype"] = "float8_e4m3fn" if fp8 else "int8"
    inputs = {n: TensorSpec((rows, width), "bfloat16") for n in ("x", "residual")}
    inputs["weight"] = TensorSpec((width,), "bfloat16")
    problem = problem_of(SPEC, attrs, inputs)
    kernel = NormLoop() if case == 2 else NormRows()
    (binary,) = compiled(kernel, problem, target)
    wide = "_load_b128" if target.wave == 32 else "_load_dwordx4"
    assert (wide if target.api == "rocm" else "ld.global.v4.b32") in binary.assembly


@pytest.mark.parametrize("target", GPU_TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("kernel", [NormRows(), NormLoop()], ids=lambda k: k.name)
def test_a_residual_in_float32(kernel: TritonKernel, target: Target) -> None:
    """A model's step: float16 in and out, the stream in float32."""
    inputs = {
        "x": TensorSpec((4, 4096), "float16"),
        "residual": TensorSpec((4, 4096), "float32"),
        "weight": TensorSpec((4096,), "float32"),
    }
    compiled(kernel, problem_of(SPEC, {"kind": "rms", "eps": 1e-5}, inputs), target)
