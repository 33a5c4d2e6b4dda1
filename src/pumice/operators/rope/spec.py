"""Rotary position embedding (Su et al., arXiv:2104.09864) as two operators.

rope_table   cosines and sines of a step's positions, made once a step and read by every layer.
             attrs: D (rotary width), mscale (yarn's attention factor, 1 by default)
rope_append  rotates queries and keys, and appends keys and values to the paged cache.
             attrs: heads, kv_heads, head_dim, block_size; rotary_dim (≤ head_dim, head_dim by
             default), interleaved (pairs (0, 1), (2, 3) … instead of halves), qk_norm with eps (RMS
             norm of each query and key head before the rotation)

One layer's caches are float16: k_cache[blocks, kv_heads, head_dim, block_size], whose tokens are
contiguous, and v_cache[blocks, kv_heads, block_size, head_dim]. slot = block · block_size + offset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.rms_norm.spec import rms_norm


def table_reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Angles are float32 products, as checkpoints were trained with; cosine and sine are
    float64."""
    positions = inputs["positions"].astype(np.float32)
    angle = (positions[:, None] * inputs["inv_freq"][None, :]).astype(np.float64)
    both = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
    return {"table": (both * attrs.get("mscale", 1.0)).astype(np.float32)}


def rotate(x: np.ndarray, table: np.ndarray, rotary: int, interleaved: bool) -> np.ndarray:
    """Rotates the first `rotary` of the last axis of x[T, heads, head_dim] by table[T, rotary]."""
    half = rotary // 2
    cos, sin = table[:, None, :half].astype(np.float64), table[:, None, half:].astype(np.float64)
    out = x.astype(np.float64).copy()
    first = slice(0, rotary, 2) if interleaved else slice(0, half)
    second = slice(1, rotary, 2) if interleaved else slice(half, rotary)
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first] = a * cos - b * sin
    out[..., second] = b * cos + a * sin
    return np.asarray(out)


def append_reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """q_out, and the caches (given in `inputs` as they were before) with the slots written."""
    heads, kv_heads, dim = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    size = attrs["block_size"]
    tokens = len(inputs["slots"])
    x = inputs["qkv"].astype(np.float64).reshape(tokens, heads + 2 * kv_heads, dim)
    q, k, v = x[:, :heads], x[:, heads : heads + kv_heads], x[:, heads + kv_heads :]
    if attrs.get("qk_norm"):
        q = rms_norm(q, inputs["q_norm"], attrs["eps"])
        k = rms_norm(k, inputs["k_norm"], attrs["eps"])
    rotary, pairs = attrs.get("rotary_dim", dim), bool(attrs.get("interleaved"))
    q, k = (rotate(part, inputs["table"], rotary, pairs) for part in (q, k))
    k_cache, v_cache = inputs["k_cache"].copy(), inputs["v_cache"].copy()
    block, offset = inputs["slots"] // size, inputs["slots"] % size
    k_cache[block, :, :, offset] = k.astype(np.float16)
    v_cache[block, :, offset, :] = v.astype(np.float16)
    q_out = q.reshape(tokens, heads * dim).astype(np.float32)
    return {"q_out": q_out, "k_cache": k_cache, "v_cache": v_cache}


def table_cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """No tokens, position 0, the far end of a long context, odd widths."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for tokens, width, base in (
        (5, 64, 1e5),
        (0, 64, 1e4),
        (1, 128, 5e5),
        (257, 80, 1e4),
        (7, 6, 1e4),
    ):
        positions = rng.integers(0, 131073, tokens, dtype=np.int32)
        positions[: min(tokens, 3)] = (0, 131072, 1)[: min(tokens, 3)]
        inv_freq = (1.0 / base ** (np.arange(0, width, 2) / width)).astype(np.float32)
        attrs = {"D": width, "mscale": 1.0 if width != 80 else 1.25}
        found.append((attrs, {"positions": positions, "inv_freq": inv_freq}))
    return found


def append_cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Head counts and widths that are no multiples of a vector, partial rotation, pairs, norms,
    scattered slots."""
    shapes: list[tuple[int, dict[str, Any]]] = [
        (5, {"heads": 9, "kv_heads": 3, "head_dim": 64}),
        (0, {"heads": 2, "kv_heads": 1, "head_dim": 16}),
        (1, {"heads": 4, "kv_heads": 2, "head_dim": 80}),
        (33, {"heads": 3, "kv_heads": 3, "head_dim": 20, "rotary_dim": 8}),
        (7, {"heads": 4, "kv_heads": 2, "head_dim": 32, "interleaved": True}),
        (3, {"heads": 4, "kv_heads": 1, "head_dim": 96, "rotary_dim": 24, "interleaved": True}),
        (6, {"heads": 4, "kv_heads": 2, "head_dim": 128, "qk_norm": True, "eps": 1e-6}),
    ]
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for tokens, attrs in shapes:
        size, blocks = 32, 4
        heads, kv_heads, dim = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
        rotary = attrs.get("rotary_dim", dim)
        positions = rng.integers(0, 4096, tokens, dtype=np.int32)
        inv_freq = (1e4 ** -(np.arange(0, rotary, 2) / rotary)).astype(np.float32)
        table = table_reference({}, {"positions": positions, "inv_freq": inv_freq})["table"]
        inputs = {
            "qkv": rng.standard_normal((tokens, (heads + 2 * kv_heads) * dim), dtype=np.float32),
            "table": table,
            "slots": rng.permutation(blocks * size)[:tokens].astype(np.int32),
            "k_cache": rng.standard_normal((blocks, kv_heads, dim, size)).astype(np.float16),
            "v_cache": rng.standard_normal((blocks, kv_heads, size, dim)).astype(np.float16),
        }
        if attrs.get("qk_norm"):
            inputs["q_norm"] = rng.standard_normal(dim, dtype=np.float32)
            inputs["k_norm"] = rng.standard_normal(dim, dtype=np.float32)
        found.append(({**attrs, "block_size": size}, inputs))
    return found


TABLE_SPEC = OperatorSpec(
    name="rope_table",
    formula="table[t] = mscale · (cos a | sin a), a = positions[t] · inv_freq in float32",
    axes={"T": "tokens", "D": "rotary width"},
    inputs={"positions": "int32[T]", "inv_freq": "float32[D/2]"},
    outputs={"table": "float32[T, D]"},
    reference=table_reference,
    tolerance={"float32": 1e-6, "absolute": 2e-6},
    cases=table_cases,
    kernels=("pumice.operators.rope.kernel_table_tir:RopeTable",),
)

APPEND_SPEC = OperatorSpec(
    name="rope_append",
    formula=(
        "q_out = rot(q); k_cache[slot] = rot(k); v_cache[slot] = v; "
        "rot(a, b) = (a·cos − b·sin, b·cos + a·sin)"
    ),
    axes={"T": "tokens", "C": "(heads + 2·kv_heads)·head_dim", "D": "rotary width"},
    inputs={
        "qkv": "float32[T, C]",
        "table": "float32[T, D]",
        "slots": "int32[T]",
        "q_norm": "float32[head_dim]",
        "k_norm": "float32[head_dim]",
    },
    outputs={
        "q_out": "float32[T, heads·head_dim]",
        "k_cache": "float16[blocks, kv_heads, head_dim, block_size]",
        "v_cache": "float16[blocks, kv_heads, block_size, head_dim]",
    },
    reference=append_reference,
    tolerance={"float32": 1e-6, "float16": 1e-3},
    cases=append_cases,
    kernels=("pumice.operators.rope.kernel_append_tir:RopeAppend",),
)
