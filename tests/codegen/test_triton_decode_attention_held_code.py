"""The machine code of decode_attention's kernel for few keys: all old keys and values are asked for
before it waits for the launch in front, and nothing is spilled."""

from __future__ import annotations

import pytest
from triton_code import compiled, problem_of

from pumice.operators.decode_attention.held import HeldAttention
from pumice.operators.decode_attention.spec import SPEC
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import get_target

HOPPER = get_target("sm_90")


def _problem(heads: int, kv_heads: int, blocks: int = 32, sequences: int = 1) -> Problem:
    half, wide = "float16", (heads + 2 * kv_heads) * 128
    strides = (wide, 128, 1)
    inputs = {
        "q": TensorSpec((sequences, heads, 128), half, strides),
        "k": TensorSpec((sequences, kv_heads, 128), half, strides),
        "v": TensorSpec((sequences, kv_heads, 128), half, strides),
        "positions": TensorSpec((sequences,), "int32"),
        "inv_freq": TensorSpec((64,), "float32"),
        "slots": TensorSpec((sequences,), "int32"),
        "k_cache": TensorSpec((64, 32, kv_heads, 128), half),
        "v_cache": TensorSpec((64, 32, kv_heads, 128), half),
        "block_table": TensorSpec((sequences, blocks), "int32"),
        "context_len": TensorSpec((sequences,), "int32"),
    }
    return problem_of(SPEC, {"scale": 0.1, "factor": 1.0}, inputs)


@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 32), (32, 8)])
def test_what_it_waits_for(heads: int, kv_heads: int) -> None:
    (binary,) = compiled(HeldAttention(), _problem(heads, kv_heads), HOPPER)
    assert binary.metadata.launch_pdl
    before, wait, _ = binary.assembly.partition("griddepcontrol.wait")
    # 256 keys and as many values of 256 bytes, 16 bytes a load of each of 256 threads.
    assert wait and before.count("ld.global.v4.b32") >= 2 * 256 * 256 // (16 * 256)
    assert "st.global" not in before


def test_refusals() -> None:
    for problem, word in (
        (_problem(32, 8, blocks=33), "1056 keys"),
        (_problem(32, 8, sequences=5), "160 heads"),
    ):
        why = HeldAttention().supports(problem, HOPPER)
        assert why is not None and word in why
    why = HeldAttention().supports(_problem(32, 8), get_target("gfx1100"))
    assert why is not None and "begin early" in why
