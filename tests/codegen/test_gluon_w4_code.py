"""The machine code of the 4-bit kernel for Hopper: weights reach the matrix unit from registers,
without passing between threads; copies are asynchronous, and nothing is spilled."""

from __future__ import annotations

import re

import pytest
from triton_code import compiled, problem_of

from pumice.operators.fused_w4.hopper import FusedStream
from pumice.operators.fused_w4.spec import SPEC as FUSED
from pumice.operators.fused_w4.spec import bench_problem as fused_problem
from pumice.operators.gemm_w4.hopper import Stream
from pumice.operators.gemm_w4.spec import SPEC, bench_problem
from pumice.targets import get_target

HOPPER = get_target("sm_90")
WEIGHTS = re.compile(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], 0x10")
FROM_REGISTERS = r"wgmma\.mma_async\.sync\.aligned\.m64n{}k16\.f32\.{}\.{} \{{[^}}]*\}}, \{{"


@pytest.mark.parametrize(
    ("m", "dtype", "offset"),
    [
        (2, "float16", ""), (16, "bfloat16", "mins"), (32, "float16", "mins"),
        (64, "float16", ""), (48, "bfloat16", ""),
    ],
)  # fmt: skip
def test_products(m: int, dtype: str, offset: str) -> None:
    _, attrs, inputs = bench_problem(m, 12288, 4096, 32, offset, dtype, "rows")
    (binary,) = compiled(Stream(), problem_of(SPEC, attrs, inputs), HOPPER)
    text = binary.assembly
    kind = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    assert re.search(FROM_REGISTERS.format(max(8, 1 << (m - 1).bit_length()), kind, kind), text)
    assert WEIGHTS.search(text)
    assert "shfl" not in text and "st.shared.v4" not in text


def test_beginning_early() -> None:
    """Weights, which nobody writes, are under way before it waits; all else is read afterwards."""
    _, attrs, inputs = fused_problem(8, 22016, 4096, "silu")
    (binary,) = compiled(FusedStream(), problem_of(FUSED, attrs, inputs), HOPPER)
    assert binary.metadata.launch_pdl
    before, wait, after = binary.assembly.partition("griddepcontrol.wait")
    assert wait and "griddepcontrol.launch_dependents" in after
    assert WEIGHTS.search(before)
    assert "cp.async.ca" not in before and "cp.async.ca" in after  # x, two values a copy
    assert "st.global" not in before and "ld.global" not in before


def test_the_residual_stream() -> None:
    _, attrs, inputs = fused_problem(32, 4096, 11008, "residual")
    compiled(FusedStream(), problem_of(FUSED, attrs, inputs), HOPPER)
