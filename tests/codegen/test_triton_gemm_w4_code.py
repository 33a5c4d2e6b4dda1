"""The machine code of gemm_w4: packed arithmetic, matrix instructions, wide loads, no exchanges."""

from __future__ import annotations

import re
from typing import Any

import pytest
from triton_code import AS_IT_IS, ROCM_TARGETS, compiled, problem_of

from pumice.operators.gemm_w4.dequantize_spec import SPEC as DEQUANTIZE_SPEC
from pumice.operators.gemm_w4.spec import SPEC, bench_problem, weight_specs
from pumice.operators.gemm_w4.triton_plan import Dequantize, Gemv, Matrix, Tiled
from pumice.operators.gemm_w4.two_step import TwoStep
from pumice.operators.triton.plan import Problem
from pumice.targets import CUDA_TARGETS, Target, get_target

SOME = [get_target(name) for name in ("gfx942", "gfx1100", "sm_90")]
WEIGHTS = re.compile(r"ld\.global\.L1::evict_first\S*\.v4\.b32")
MATRIX = {"mfma": "v_mfma_f32", "wmma": "v_wmma_f32", "wgmma": "wgmma.mma_async"}


def _problem(m: int, packing: str, dtype: str = "float16", group: int = 32) -> Problem:
    _, attrs, inputs = bench_problem(
        m, 12288, 4096, group, "zeros" if group == 128 else "", dtype, packing
    )
    return problem_of(SPEC, attrs, inputs)


@pytest.mark.parametrize("target", [*ROCM_TARGETS, get_target("sm_90")], ids=lambda t: t.name)
def test_vector_units(target: Target) -> None:
    """32 codes of 4 rows in 16 packed multiply-adds each; every access to memory is wide."""
    (binary,) = compiled(Gemv(), _problem(1, "rows"), target)
    text = binary.assembly
    if target.api == "cuda":
        assert text.count("fma.rn.f16x2") >= 64 + 32
        assert len(WEIGHTS.findall(text)) == 4
        assert text.count("ld.global.v4.b32") == 4
    else:
        assert text.count("v_dot2_f32_f16") >= 64 + 16
        wide = "global_load_b128" if target.wave == 32 else "global_load_dwordx4"
        assert text.count(wide) >= 8


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
def test_vector_units_with_zeros_in_bfloat16(target: Target) -> None:
    compiled(Gemv(), _problem(2, "rows", "bfloat16", 128), target)


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
@pytest.mark.parametrize("kernel", [Gemv(), Tiled()], ids=lambda k: k.name)
def test_logits_in_float32(kernel: Any, target: Target) -> None:
    _, attrs, inputs = bench_problem(1, 32000, 4096, packing="rows")
    compiled(kernel, problem_of(SPEC, attrs | {"out_dtype": "float32"}, inputs), target)


@pytest.mark.parametrize("target", CUDA_TARGETS, ids=lambda t: t.name)
def test_matrix_units_for_few_tokens(target: Target) -> None:
    """Words go from memory to the matrix instruction's registers: nothing through shared memory but
    the warps' sums at the end."""
    (binary,) = compiled(Matrix(), _problem(1, "blocks"), target)
    text = binary.assembly
    assert text.count("mma.sync.aligned.m16n8k16") == 8
    assert "ldmatrix" not in text and "stmatrix" not in text
    loop = text[: text.rindex("mma.sync")]
    assert "st.shared" not in loop
    assert not AS_IT_IS or "shfl" not in loop  # Triton 3.9 exchanges scales between lanes
    assert len(WEIGHTS.findall(text)) == 4  # two before the loop


def test_matrix_units_with_zeros_in_bfloat16() -> None:
    compiled(Matrix(), _problem(16, "blocks", "bfloat16", 128), get_target("sm_90"))


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
@pytest.mark.parametrize("m", [32, 1024])
def test_tiles(m: int, target: Target) -> None:
    packing = "blocks" if target.api == "cuda" else "rows"
    binary = compiled(Tiled(), _problem(m, packing), target)[0]
    assert MATRIX[str(target.matrix_unit)] in binary.assembly


@pytest.mark.parametrize("target", [*ROCM_TARGETS, get_target("sm_90")], ids=lambda t: t.name)
def test_minima_on_vector_units(target: Target) -> None:
    """Packed arithmetic, and one sum of a group's activations for all rows: AMD's sums are there
    already, NVIDIA adds pairs."""
    _, attrs, inputs = bench_problem(1, 12288, 4096, 32, "mins", packing="rows")
    (binary,) = compiled(Gemv(), problem_of(SPEC, attrs, inputs), target)
    if target.api == "cuda":
        assert binary.assembly.count("add.f16x2") == 4 + 15  # a row's totals, the tree
    else:
        assert 64 + 16 <= binary.assembly.count("v_dot2_f32_f16") < 64 + 32


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_as_many_tokens_as_vector_units_take(dtype: str, target: Target) -> None:
    """The most that the kernel accepts fits the registers."""
    kernel = Gemv()
    for m in (16, 8, 4, 2):
        _, attrs, inputs = bench_problem(m, 4096, 4096, 32, "mins", dtype, "rows")
        problem = problem_of(SPEC, attrs, inputs)
        if kernel.supports(problem, target) is None:
            compiled(kernel, problem, target)
            return
    raise AssertionError("no kernel for two tokens")


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
def test_minima_on_matrix_units(target: Target) -> None:
    for kernel, m, packing in ((Matrix(), 16, "blocks"), (Tiled(), 64, "rows")):
        _, attrs, inputs = bench_problem(m, 4096, 4096, 32, "mins", packing=packing)
        problem = problem_of(SPEC, attrs, inputs)
        if kernel.supports(problem, target) is None:
            text = compiled(kernel, problem, target)[0].assembly
            if isinstance(kernel, Matrix):  # half of the products are with ones
                assert text.count("mma.sync.aligned.m16n8k16") == 2 * 4 * 2 * 2
                assert "shfl" not in text[: text.rindex("mma.sync")]
            else:
                assert MATRIX[str(target.matrix_unit)] in text


@pytest.mark.parametrize("m", [16, 64])
def test_tiles_where_a_row_ends_inside_a_block(m: int) -> None:
    """SmolLM2's width, masked loads beside stages in RDNA's registers."""
    _, attrs, inputs = bench_problem(m, 3072, 576, 32, "mins", packing="rows")
    compiled(Tiled(), problem_of(SPEC, attrs, inputs), get_target("gfx1100"))


def test_two_steps() -> None:
    for name, packing in (("gfx942", "rows"), ("sm_90", "blocks")):
        unpack, product = compiled(TwoStep(), _problem(1024, packing), get_target(name))
        instruction = MATRIX[str(get_target(name).matrix_unit)]
        assert instruction in product.assembly and instruction not in unpack.assembly


@pytest.mark.parametrize("target", SOME, ids=lambda t: t.name)
def test_dequantize(target: Target) -> None:
    attrs: dict[str, Any] = {"group": 128, "zero": 0, "out_dtype": "bfloat16", "packing": "blocks"}
    compiled(
        Dequantize(),
        problem_of(DEQUANTIZE_SPEC, attrs, weight_specs(4096, 4096, 128, "zeros")),
        target,
    )
