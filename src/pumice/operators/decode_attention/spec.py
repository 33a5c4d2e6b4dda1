"""decode_attention: rotary embedding of one new token a sequence, its append to a paged cache, and
its attention over all keys: `rope_cache` and then `paged_attention`, in one launch.

attrs: those of `paged_attention` (scale, window_left, softcap) and of `rope_cache` (interleaved,
factor, eps, weight_offset).

Sequence s has context_len[s] keys, the new one's included: the others are in the cache. The new key
and value count as the cache would hold them (rounded, scaled), and are written to slots[s] unless
that is −1. A sequence with no keys (context_len 0) gives 0 and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.dtypes import itemsize, numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.flash_attention.spec import attend
from pumice.operators.paged_attention.spec import AXES, context_of, with_options
from pumice.operators.rope_cache.spec import (
    CACHE_INPUTS,
    CACHE_OUTPUTS,
    append,
    layer_specs,
    rotate,
)
from pumice.operators.triton.plan import Problem, TensorSpec, Work


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """out in float64, and the caches after the append."""
    table = inputs["positions"], inputs["inv_freq"]
    q = rotate(attrs, inputs["q"], inputs.get("q_weight"), *table)
    k = rotate(attrs, inputs["k"], inputs.get("k_weight"), *table)
    new = {"k_cache": k, "v_cache": inputs["v"].astype(np.float64)}
    lengths = inputs["context_len"]
    slots = np.where(lengths > 0, inputs["slots"], -1)
    caches, rows = {}, {}
    for name, scale in (("k_cache", "k_scale"), ("v_cache", "v_scale")):
        cache, factor = inputs[name], inputs.get(scale)
        caches[name] = append(cache, new[name], slots, factor)
        # Each new row alone in a cache of its own: how the type holds it.
        alone = np.zeros((len(q), 1, *cache.shape[2:]), cache.dtype)
        held = append(alone, new[name], np.arange(len(q)), factor)[:, 0].astype(np.float64)
        rows[name] = held if factor is None else held * factor.reshape(-1, 1).astype(np.float64)
    out = np.zeros((*q.shape[:2], inputs["v"].shape[2]))
    before = {**inputs, "context_len": np.maximum(lengths - 1, 0)}
    for s in range(len(q)):
        if lengths[s] > 0:
            keys, values = (
                np.concatenate([context_of(before, name, scale, s), rows[name][s : s + 1]])
                for name, scale in (("k_cache", "k_scale"), ("v_cache", "v_scale"))
            )
            seen = {**attrs, "causal": True}
            out[s] = attend(seen, q[s : s + 1], keys, values, inputs.get("sinks"))[0][0]
    return {"out": out, **caches}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    tokens, heads, _ = specs["q"].shape
    out = TensorSpec((tokens, heads, specs["v"].shape[2]), specs["q"].dtype)
    return {"out": out, "k_cache": specs["k_cache"], "v_cache": specs["v_cache"]}


def work(problem: Problem) -> Work:
    """Least bytes and operations when every context fills its row of the block table."""
    sequences, width = problem["block_table"].shape
    k, v, heads = problem["k_cache"], problem["v_cache"], problem["q"].shape[1]
    left = problem.attrs.get("window_left", -1)
    keys = width * k.shape[1]
    seen = min(keys, left + 1) if left >= 0 else keys
    row = k.shape[2] * (k.shape[3] + v.shape[3]) * itemsize(k.dtype)
    rest = (t.nbytes for name, t in problem.tensors.items() if name not in ("k_cache", "v_cache"))
    return Work(
        bytes=sequences * seen * row + sum(rest),
        flops=2.0 * sequences * heads * seen * (k.shape[3] + v.shape[3]),
        dtype=problem["q"].dtype,
    )


_Shape = tuple[str, str, tuple[int, int, int, int], int, int, list[int], dict[str, Any]]
# dtype, the cache's, (H, Hk, D, Dv), rotated columns, block size, contexts, attrs
_SHAPES: list[_Shape] = [
    ("bfloat16", "bfloat16", (3, 1, 80, 80), 80, 16, [5, 0, 130, 1], {}),
    ("float16", "float16", (4, 4, 64, 64), 64, 16, [1, 301], {"interleaved": True}),
    ("bfloat16", "bfloat16", (8, 2, 128, 128), 128, 32, [257, 33, 0], {"norm": True}),
    ("float16", "float16", (8, 2, 64, 64), 32, 64, [400, 7], {"window_left": 100, "factor": 1.2}),
    ("bfloat16", "bfloat16", (7, 1, 96, 96), 48, 16, [190],
     {"softcap": 3.0, "sinks": True, "interleaved": True, "norm": True}),
    ("bfloat16", "float8_e4m3fn", (8, 2, 64, 64), 64, 16, [140, 3], {"scales": 1}),
    ("float16", "float8_e5m2", (4, 2, 64, 64), 64, 32, [70], {"scales": 2}),
    ("float16", "float16", (2, 1, 256, 256), 256, 16, [150],
     {"scale": 0.02, "sinks": True, "norm": True, "weight_offset": 1.0}),
    ("float16", "float16", (20, 1, 16, 16), 16, 32, [97, 64], {}),
    ("bfloat16", "bfloat16", (4, 2, 64, 64), 64, 16, [], {}),
]  # fmt: skip


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Contexts of no key, of the new one alone, of a whole block and a key; both pairings, partial
    rotation, normalization, windows, soft caps, sinks, 8-bit caches, tokens without a slot."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for name, cache, (heads, kv_heads, dim, dim_v), rotary, size, contexts, options in _SHAPES:
        attrs, count = dict(options), len(contexts)
        dtype = numpy_dtype(name)
        need = [-(-length // size) for length in contexts]
        blocks = sum(need) + 2
        order = rng.permutation(blocks).astype(np.int32)
        table = np.full((count, max([*need, 1]) + 1), 2**30, np.int32)
        slots = np.full(count, -1, np.int32)
        used = 0
        for s, blocks_of in enumerate(need):
            table[s, :blocks_of] = order[used : used + blocks_of]
            used += blocks_of
            if contexts[s] and s != 1:  # the second one's token is in no slot
                last = contexts[s] - 1
                slots[s] = table[s, last // size] * size + last % size

        def normal(*shape: int, to: Any = dtype) -> np.ndarray:
            return rng.standard_normal(shape, np.float32).astype(to)

        inputs = {
            "q": normal(count, heads, dim), "k": normal(count, kv_heads, dim),
            "v": normal(count, kv_heads, dim_v),
            "positions": np.array([max(n - 1, 0) for n in contexts], np.int32),
            "inv_freq": (1e4 ** -(np.arange(rotary // 2) * 2 / rotary)).astype(np.float32),
            "slots": slots,
            "k_cache": normal(blocks, size, kv_heads, dim, to=numpy_dtype(cache)),
            "v_cache": normal(blocks, size, kv_heads, dim_v, to=numpy_dtype(cache)),
            "block_table": table, "context_len": np.array(contexts, np.int32),
        }  # fmt: skip
        if attrs.pop("norm", False):
            inputs["q_weight"] = normal(dim, to=np.dtype(np.float32)) + np.float32(1)
            inputs["k_weight"] = normal(dim, to=np.dtype(np.float32)) + np.float32(1)
        with_options(rng, attrs, inputs)
        found.append((attrs, inputs))
    return found


def decode_specs(
    shape: tuple[int, int, int],
    batch: int,
    context: int,
    *,
    dtype: str = "float16",
    block_size: int = 32,
    norm: bool = False,
) -> dict[str, TensorSpec]:
    """Inputs as a compiled model has them: q, k and v are columns of one matrix."""
    _, kv_heads, dim = shape
    width = -(-context // block_size)
    pages = TensorSpec((batch * width, block_size, kv_heads, dim), dtype)
    return {
        **layer_specs(shape, batch, pages, dtype, merged=True, norm="float32" if norm else ""),
        "block_table": TensorSpec((batch, width), "int32"),
        "context_len": TensorSpec((batch,), "int32"),
    }


def bench_integers(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> dict[str, np.ndarray]:
    """The integer inputs of a benchmark: full contexts, blocks out of order, new tokens last."""
    batch, width = specs["block_table"].shape
    size = specs["k_cache"].shape[1]
    table = np.random.default_rng(0).permutation(batch * width).reshape(batch, width)
    length = width * size
    return {
        "block_table": table.astype(np.int32),
        "context_len": np.full(batch, length, np.int32),
        "positions": np.full(batch, length - 1, np.int32),
        "slots": (table[:, -1] * size + size - 1).astype(np.int32),
    }


_LLAMA2_7B, _LLAMA3_8B = (32, 32, 128), (32, 8, 128)
# label, attrs, inputs; `bench_integers` fills the integer ones
BENCH: tuple[tuple[str, dict[str, Any], dict[str, TensorSpec]], ...] = (
    *(
        (f"{name} {batch}×{context}", {}, decode_specs(shape, batch, context))
        for name, shape in (("Llama-2-7B", _LLAMA2_7B), ("Llama-3-8B", _LLAMA3_8B))
        for batch in (1, 8, 64)
        for context in (128, 1024, 8192)
        if (name, batch, context) != ("Llama-2-7B", 64, 8192)  # its 32 layers fit on no GPU
    ),
    ("Qwen3-8B 1×1024, normalized", {}, decode_specs(_LLAMA3_8B, 1, 1024, norm=True)),
    ("Qwen3-8B 8×1024, normalized", {}, decode_specs(_LLAMA3_8B, 8, 1024, norm=True)),
)

SPEC = OperatorSpec(
    name="decode_attention",
    formula="cache[slots[s]] ← rope(norm(k[s])), v[s]; out[s] = attention(rope(norm(q[s])), cache)",
    axes={**AXES, "R": "rotated columns"},
    inputs={
        "q": "dtype[S, H, D]",
        "k": "dtype[S, Hk, D]",
        "v": "dtype[S, Hk, Dv]",
        "positions": "int32[S], below 2^24",
        "inv_freq": "float32[R/2]",
        "slots": "int32[S]",
        "block_table": "int32[S, M]",
        "context_len": "int32[S], the new token's key included",
        **CACHE_INPUTS,
        "sinks": "any float [H], optional",
    },
    outputs={"out": "dtype[S, H, Dv]", **CACHE_OUTPUTS},
    reference=reference,
    tolerance={
        "bfloat16": 6e-3, "float16": 1e-3, "float8_e4m3fn": 2e-2, "float8_e4m3fnuz": 2e-2,
        "float8_e5m2": 4e-2,
    },
    cases=cases,
    triton_kernels=(
        "pumice.operators.decode_attention.triton_plan:DecodeAttention",
        "pumice.operators.decode_attention.held:HeldAttention",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip
