"""gemm_w8 compiles for GPUs: wide loads, matrix instructions, nothing spilled."""

from __future__ import annotations

import pytest
from triton_code import GPU_TARGETS, compiled, problem_of

from pumice.operators.gemm_w8.spec import SPEC, bench_problem
from pumice.operators.gemm_w8.triton_plan import Gemv, Tiled
from pumice.operators.triton.plan import TensorSpec
from pumice.targets import Target, get_target

SOME = [get_target(name) for name in ("gfx942", "gfx1100", "sm_90")]
MATRIX = {"mfma": "v_mfma_f32", "wmma": "v_wmma_f32", "wgmma": "wgmma.mma_async"}


@pytest.mark.parametrize("target", GPU_TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize(("group", "mins"), [(32, False), (16, True)], ids=["group32", "mins16"])
def test_vector_units(target: Target, group: int, mins: bool) -> None:
    _, attrs, inputs = bench_problem(1, 12288, 4096, group, mins=mins)
    (binary,) = compiled(Gemv(), problem_of(SPEC, attrs, inputs), target)
    wide = {"cuda": "v4.b32", "rocm": "load_b128" if target.wave == 32 else "load_dwordx4"}
    assert wide[target.api] in binary.assembly


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
@pytest.mark.parametrize("m", [32, 1024])
def test_tiles(m: int, target: Target) -> None:
    _, attrs, inputs = bench_problem(m, 12288, 4096)
    binary = compiled(Tiled(), problem_of(SPEC, attrs, inputs), target)[0]
    assert MATRIX[str(target.matrix_unit)] in binary.assembly


@pytest.mark.parametrize("target", GPU_TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("m", [32, 1024])
def test_tiles_of_unsigned_codes_with_minima(m: int, target: Target) -> None:
    _, attrs, inputs = bench_problem(m, 12288, 4096, 16, mins=True)
    inputs["w"] = TensorSpec((12288, 4096), "uint8")
    compiled(Tiled(), problem_of(SPEC, attrs, inputs), target)
