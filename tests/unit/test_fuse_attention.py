"""Rotation and append, and the attention behind them, become one call where nothing else needs what
lies between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pumice.compiler.gpu.fuse_attention import fuse_attention
from pumice.compiler.gpu.translate import Call
from pumice.compiler.gpu.values import Value
from pumice.operators.triton.plan import TensorSpec
from pumice.targets import get_target

TARGET = get_target("gfx1100")


def value(space: str, name: str, shape: tuple[int, ...], dtype: str = "float16") -> Value:
    return Value(space, name, TensorSpec(shape, dtype))


CACHES = {
    "k_cache": value("cache", "k", (8, 32, 2, 64)),
    "v_cache": value("cache", "v", (8, 32, 2, 64)),
}
ROTATED = value("arena", "rotated", (2, 4, 64))
ROPE = Call(
    "rope_cache",
    {"factor": 1.0, "eps": 1e-5},
    {
        "q": value("arena", "qkv", (2, 4, 64)), "k": value("arena", "qkv", (2, 2, 64)),
        "v": value("arena", "qkv", (2, 2, 64)), "q_out": ROTATED, **CACHES,
        "positions": value("input", "positions", (2,), "int32"),
        "slots": value("input", "slots", (2,), "int32"),
        "inv_freq": value("weight", "inv_freq", (32,), "float32"),
    },
    frozenset({"q_out"}), "rope_append", 0, 0,
)  # fmt: skip
ATTENTION = Call(
    "paged_attention",
    {"scale": 0.125, "window_left": 7},
    {
        "q": ROTATED, "out": value("arena", "out", (2, 4, 64)), **CACHES,
        "block_table": value("input", "block_table", (2, 4), "int32"),
        "context_len": value("input", "context_len", (2,), "int32"),
    },
    frozenset({"out"}), "attention", ["*", "K", 512], ["*", "K", 1024],
)  # fmt: skip
OTHER = Call(
    "norm", {}, {"x": value("arena", "out", (2, 256)), "out": value("arena", "h", (2, 256))},
    frozenset({"out"}), "rms_norm", 0, 0,
)  # fmt: skip


def test_two_calls_become_one() -> None:
    next_q = replace(ROTATED, name="rotated in the next layer")
    rope = replace(ROPE, tensors={**ROPE.tensors, "q_out": next_q})
    attention = replace(ATTENTION, tensors={**ATTENTION.tensors, "q": next_q})
    calls, said = fuse_attention([OTHER, ROPE, ATTENTION, OTHER, rope, attention], TARGET)
    names = [call.operator for call in calls]
    assert names == ["norm", "decode_attention", "norm", "decode_attention"]
    fused = calls[1]
    assert fused.attrs == {"factor": 1.0, "eps": 1e-5, "scale": 0.125, "window_left": 7}
    assert {*fused.tensors} == ({*ROPE.tensors} | {*ATTENTION.tensors}) - {"q_out"}
    assert fused.tensors["q"] == ROPE.tensors["q"] and fused.outputs == {"out"}
    assert (fused.nbytes, fused.operations) == (ATTENTION.nbytes, ATTENTION.operations)
    assert said and "not fused" not in said


def _reading(name: str) -> list[Call]:
    reader = replace(OTHER, tensors={**OTHER.tensors, "x": ROTATED})
    other_q = replace(
        ATTENTION, tensors={**ATTENTION.tensors, "q": value("arena", "q", (2, 4, 64))}
    )
    layer = replace(CACHES["k_cache"], layer=1)
    other_cache = replace(ATTENTION, tensors={**ATTENTION.tensors, "k_cache": layer})
    wide = replace(ROPE.tensors["inv_freq"], spec=TensorSpec((40,), "float32"))
    cases: dict[str, Any] = {
        "another call reads": [ROPE, ATTENTION, reader],
        "other queries": [ROPE, other_q],
        "another cache": [ROPE, other_cache],
        "at most 32 values": [replace(ROPE, tensors={**ROPE.tensors, "inv_freq": wide}), ATTENTION],
    }
    return list(cases[name])


@pytest.mark.parametrize(
    "reason", ["another call reads", "other queries", "another cache", "at most 32 values"]
)
def test_what_stays_as_it_is(reason: str) -> None:
    given = _reading(reason)
    calls, said = fuse_attention(given, TARGET)
    assert calls == given
    assert said.startswith("not fused: ") and reason in said


def test_nothing_to_fuse() -> None:
    chunk = replace(ATTENTION, operator="paged_prefill")
    assert fuse_attention([ROPE, chunk, OTHER], TARGET) == ([ROPE, chunk, OTHER], "")
