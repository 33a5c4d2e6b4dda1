"""rope_cache: rotary position embedding (Su et al., arXiv:2104.09864) of q and k, with the append
of k and v to a paged cache and, before it, RMS normalization of each head (as Qwen3 does).

attrs: interleaved (pairs (2i, 2i+1) as in GPT-J; else (i, i + R/2) as in GPT-NeoX), factor (scales
cos and sin: the attention factor of YaRN and LongRoPE; 1), in_place (q changes in place; else
q_out), keep_k (rotated k is an output, too), eps and weight_offset (of the normalization; w is used
as w + weight_offset).

The first R columns of a head rotate by positions[t] · inv_freq[i]; `inv_freq` has the corrections
of scaled variants (Llama-3, YaRN, linear …) in it. Token t goes to row slots[t] % block_size of
block slots[t] // block_size; slot −1 appends nothing. A cache of 8-bit floats takes k / k_scale and
v / v_scale, clamped to the type's range. Cache layouts: see `paged_attention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.dtypes import itemsize, numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.triton.plan import Problem, TensorSpec, Work


def rotate(
    attrs: Mapping[str, Any],
    x: np.ndarray,
    weight: np.ndarray | None,
    positions: np.ndarray,
    inv_freq: np.ndarray,
) -> np.ndarray:
    """x [T, heads, D], normalized where there is a weight [D], then rotated; float64."""
    x = x.astype(np.float64)
    if weight is not None:
        mean = (x * x).mean(axis=-1, keepdims=True)
        scale = weight.astype(np.float64) + attrs.get("weight_offset", 0.0)
        x = x / np.sqrt(mean + attrs.get("eps", 1e-6)) * scale
    half = len(inv_freq)
    angle = positions.astype(np.float64)[:, None, None] * inv_freq.astype(np.float64)
    cos, sin = (f(angle) * attrs.get("factor", 1.0) for f in (np.cos, np.sin))
    if attrs.get("interleaved"):
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        first, second = slice(0, half), slice(half, 2 * half)
    out: np.ndarray = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return np.asarray(out)


def append(
    cache: np.ndarray, rows: np.ndarray, slots: np.ndarray, scale: np.ndarray | None
) -> np.ndarray:
    """A copy of the cache with rows [T, Hk, size] at their slots."""
    cache = cache.copy()
    if cache.dtype.itemsize == 1:
        limit = float(ml_dtypes.finfo(cache.dtype).max)
        scaled = rows if scale is None else rows / scale.reshape(-1, 1).astype(np.float64)
        rows = np.clip(scaled, -limit, limit)
    size = cache.shape[1]
    for row, slot in zip(rows, slots.tolist(), strict=True):
        if slot >= 0:
            cache[slot // size, slot % size] = row.astype(np.float32).astype(cache.dtype)
    return cache


def _names(attrs: Mapping[str, Any]) -> tuple[str, str | None]:
    """What rotated q and k are called among the outputs."""
    if attrs.get("in_place"):
        return "q", "k" if attrs.get("keep_k") else None
    return "q_out", "k_out" if attrs.get("keep_k") else None


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """Rotated q (and k) in float64, and the caches after the append."""
    table = inputs["positions"], inputs["inv_freq"]
    q = rotate(attrs, inputs["q"], inputs.get("q_weight"), *table)
    k = rotate(attrs, inputs["k"], inputs.get("k_weight"), *table)
    name_q, name_k = _names(attrs)
    slots = inputs["slots"]
    return {
        name_q: q,
        **({name_k: k} if name_k else {}),
        "k_cache": append(inputs["k_cache"], k, slots, inputs.get("k_scale")),
        "v_cache": append(
            inputs["v_cache"], inputs["v"].astype(np.float64), slots, inputs.get("v_scale")
        ),
    }


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    name_q, name_k = _names(attrs)
    found = {name_q: specs["q"] if name_q == "q" else _fresh(specs["q"])}
    if name_k:
        found[name_k] = specs["k"] if name_k == "k" else _fresh(specs["k"])
    return {**found, "k_cache": specs["k_cache"], "v_cache": specs["v_cache"]}


def _fresh(spec: TensorSpec) -> TensorSpec:
    return TensorSpec(spec.shape, spec.dtype)


def work(problem: Problem) -> Work:
    """Every token read once and written once, to q and to the caches."""
    q, k, v = (problem[name].nbytes for name in ("q", "k", "v"))
    cache = itemsize(problem["k_cache"].dtype)
    rows = problem["k"].elements * cache + problem["v"].elements * cache
    return Work(bytes=2 * q + k + v + rows + (k if problem.attrs.get("keep_k") else 0))


_Shape = tuple[str, str, tuple[int, int, int, int], int, int, dict[str, Any]]
# dtype, the cache's, (H, Hk, D, Dv), rotated columns, tokens, attrs
_SHAPES: list[_Shape] = [
    ("bfloat16", "bfloat16", (3, 1, 80, 80), 80, 5, {}),
    ("float16", "float16", (4, 2, 64, 64), 64, 7, {"interleaved": True, "keep_k": True}),
    ("bfloat16", "bfloat16", (8, 2, 128, 128), 128, 3, {"norm": True, "in_place": True}),
    ("float16", "float16", (4, 4, 96, 64), 24, 6, {"factor": 1.2, "keep_k": True}),
    ("bfloat16", "float8_e4m3fn", (4, 2, 64, 64), 64, 9,
     {"scales": 2, "norm": True, "keep_k": True}),
    ("float16", "float8_e5m2", (5, 1, 64, 64), 32, 2, {"interleaved": True, "scales": 1}),
    ("bfloat16", "bfloat16", (2, 2, 256, 256), 256, 1,
     {"norm": True, "weight_offset": 1.0, "in_place": True, "keep_k": True}),
    ("bfloat16", "bfloat16", (2, 1, 64, 64), 64, 0, {}),
    ("float16", "float16", (6, 3, 16, 16), 16, 5, {}),
    ("float16", "float16", (3, 1, 32, 32), 32, 4, {"norm": True, "keep_k": True}),
]  # fmt: skip


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Both pairings, partial rotation, head sizes that are no powers of two, far positions, tokens
    without a slot, normalization, 8-bit caches, no tokens."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for name, cache, (heads, kv_heads, dim, dim_v), rotary, tokens, options in _SHAPES:
        attrs, dtype = dict(options), numpy_dtype(name)
        base = 10000.0 ** (-np.arange(0, rotary, 2) / rotary)
        slots = rng.permutation(48)[:tokens].astype(np.int32)
        slots[1::3] = -1
        inputs = {
            "q": rng.standard_normal((tokens, heads, dim)).astype(dtype),
            "k": rng.standard_normal((tokens, kv_heads, dim)).astype(dtype),
            "v": rng.standard_normal((tokens, kv_heads, dim_v)).astype(dtype),
            "positions": rng.integers(0, 131072, tokens).astype(np.int32),
            "inv_freq": base.astype(np.float32),
            "slots": slots,
            "k_cache": rng.standard_normal((3, 16, kv_heads, dim)).astype(numpy_dtype(cache)),
            "v_cache": rng.standard_normal((3, 16, kv_heads, dim_v)).astype(numpy_dtype(cache)),
        }
        if attrs.pop("norm", False):
            inputs["q_weight"] = rng.standard_normal(dim).astype(dtype)
            inputs["k_weight"] = rng.standard_normal(dim).astype(dtype)
        if count := attrs.pop("scales", 0):
            for scale in ("k_scale", "v_scale"):
                inputs[scale] = np.asarray(rng.uniform(0.02, 2.0, count), np.float32)
        found.append((attrs, inputs))
    return found


def layer_specs(
    shape: tuple[int, int, int],
    tokens: int,
    pages: TensorSpec,
    dtype: str,
    *,
    merged: bool = False,
    norm: str = "",
) -> dict[str, TensorSpec]:
    """Inputs of a layer with heads, key heads and head size `shape`, and a cache of `pages` for
    keys and for values. merged: q, k and v are columns of one matrix, as a compiled model has them.
    norm: the type of norm weights; "" is without.
    """
    heads, kv_heads, dim = shape
    strides = ((heads + 2 * kv_heads) * dim, dim, 1) if merged else None
    found = {
        name: TensorSpec((tokens, count, dim), dtype, strides)
        for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
    }
    found |= {
        "positions": TensorSpec((tokens,), "int32"),
        "inv_freq": TensorSpec((dim // 2,), "float32"),
        "slots": TensorSpec((tokens,), "int32"),
        "k_cache": pages,
        "v_cache": pages,
    }
    if norm:
        weight = TensorSpec((dim,), norm)
        found |= {"q_weight": weight, "k_weight": weight}
    return found


def _bench(
    label: str,
    shape: tuple[int, int, int],
    tokens: int,
    cache: str = "bfloat16",
    norm: bool = False,
) -> tuple[str, dict[str, Any], dict[str, TensorSpec]]:
    _, kv_heads, dim = shape
    pages = TensorSpec((max(tokens // 16, 64), 16, kv_heads, dim), cache)
    tensors = layer_specs(shape, tokens, pages, "bfloat16", norm="bfloat16" if norm else "")
    if cache != "bfloat16":
        scale = TensorSpec((1,), "float32")
        tensors |= {"k_scale": scale, "v_scale": scale}
    return label, {}, tensors


# label, attrs, inputs; `bench_integers` fills the integer ones
BENCH: tuple[tuple[str, dict[str, Any], dict[str, TensorSpec]], ...] = (
    _bench("Llama-3-8B 8192 tokens", (32, 8, 128), 8192),
    _bench("Llama-3-8B 64 tokens", (32, 8, 128), 64),
    _bench("Llama-3-8B 8192 tokens, fp8 cache", (32, 8, 128), 8192, "float8_e4m3fn"),
    _bench("Llama-2-7B 4096 tokens", (32, 32, 128), 4096),
    _bench("Llama-3-70B 8192 tokens", (64, 8, 128), 8192),
    _bench("Qwen3-8B 8192 tokens, normalized", (32, 8, 128), 8192, norm=True),
    _bench("Qwen3-30B 256 tokens, normalized", (32, 4, 128), 256, norm=True),
)


def bench_integers(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> dict[str, np.ndarray]:
    """The integer inputs of a benchmark: one prompt, its slots in order."""
    tokens = specs["q"].shape[0]
    order = np.arange(tokens, dtype=np.int32)
    return {"positions": order, "slots": order}


# What every operator that appends rotated keys to a paged cache takes.
CACHE_INPUTS = {
    "k_cache": "dtype or 8-bit float[blocks, block_size, Hk, D], any strides but the last",
    "v_cache": "dtype or 8-bit float[blocks, block_size, Hk, Dv], any strides but the last",
    "q_weight": "float[D], optional",
    "k_weight": "float[D], optional",
    "k_scale": "float32 [] | [1] | [Hk], optional",
    "v_scale": "float32 [] | [1] | [Hk], optional",
}
CACHE_OUTPUTS = {"k_cache": "changed in place", "v_cache": "changed in place"}

SPEC = OperatorSpec(
    name="rope_cache",
    formula="q, k ← rope(norm(q)), rope(norm(k)); cache[slots[t]] ← k[t], v[t]",
    axes={
        "T": "tokens",
        "H": "query heads",
        "Hk": "key heads",
        "D": "head size",
        "Dv": "head size of values",
        "R": "rotated columns",
    },
    inputs={
        "q": "dtype[T, H, D]",
        "k": "dtype[T, Hk, D]",
        "v": "dtype[T, Hk, Dv]",
        "positions": "int32 or int64[T], below 2^24",
        "inv_freq": "float32[R/2]",
        "slots": "int32 or int64[T]",
        **CACHE_INPUTS,
    },
    outputs={
        "q_out": "dtype[T, H, D] (q, with in_place)",
        "k_out": "dtype[T, Hk, D], with keep_k (k, with in_place)",
        **CACHE_OUTPUTS,
    },
    reference=reference,
    tolerance={
        "bfloat16": 3e-3, "float16": 4e-4, "float8_e4m3fn": 2e-2, "float8_e4m3fnuz": 2e-2,
        "float8_e5m2": 4e-2,
    },
    cases=cases,
    triton_kernels=("pumice.operators.rope_cache.triton_plan:RopeCache",),
    output_specs=output_specs,
    work=work,
)  # fmt: skip
