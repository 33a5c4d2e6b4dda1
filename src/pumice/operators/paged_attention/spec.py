"""paged_attention: attention of one new token a sequence over a paged cache (Kwon et al.,
arXiv:2309.06180).

attrs: scale (1/sqrt(D) when absent), window_left (keys before its own that a query sees; −1: all),
softcap (logits become c·tanh(logits / c); 0: none).

Sequence s has context_len[s] keys, the new token's included; key p lies in block
block_table[s, p // block_size] at row p % block_size. Other cache layouts, as
[blocks, Hk, block_size, D], are views of this one with other strides. A cache of 8-bit floats holds
key / k_scale and value / v_scale, with one scale or one a key head. Sinks and grouped heads are
those of `flash_attention`. A sequence without keys gives 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pumice.dtypes import itemsize, numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.flash_attention.spec import attend, visible_pairs
from pumice.operators.triton.plan import Problem, TensorSpec, Work


def context_of(inputs: Mapping[str, np.ndarray], cache: str, scale: str, s: int) -> np.ndarray:
    """Keys or values of sequence s from its blocks, float64 [context, Hk, size]."""
    length, size = int(inputs["context_len"][s]), inputs[cache].shape[1]
    blocks = inputs[cache][inputs["block_table"][s, : -(-length // size)]].astype(np.float64)
    rows = blocks.reshape(-1, *blocks.shape[2:])[:length]
    if scale in inputs:
        rows = rows * inputs[scale].reshape(-1, 1).astype(np.float64)
    return np.asarray(rows)


def attend_ragged(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray], starts: Sequence[int]
) -> dict[str, np.ndarray]:
    """Sequence s owns the queries starts[s] … starts[s+1] − 1, the last ones of its context."""
    q, sinks = inputs["q"], inputs.get("sinks")
    out = np.zeros((*q.shape[:2], inputs["v_cache"].shape[3]))
    for s in range(len(starts) - 1):
        rows = slice(int(starts[s]), int(starts[s + 1]))
        keys = context_of(inputs, "k_cache", "k_scale", s)
        values = context_of(inputs, "v_cache", "v_scale", s)
        out[rows] = attend({**attrs, "causal": True}, q[rows], keys, values, sinks)[0]
    return {"out": out}


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """softmax(scale · q·kᵀ)·v, a sequence at a time, float64."""
    return attend_ragged(attrs, inputs, range(len(inputs["context_len"]) + 1))


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    tokens, heads, _ = specs["q"].shape
    return {"out": TensorSpec((tokens, heads, specs["v_cache"].shape[3]), specs["q"].dtype)}


def work(problem: Problem) -> Work:
    """Least bytes and operations when every context fills its row of the block table."""
    sequences, width = problem["block_table"].shape
    k, v, q = problem["k_cache"], problem["v_cache"], problem["q"]
    keys = width * k.shape[1]
    queries = q.shape[0] / max(sequences, 1)
    pairs = sequences * visible_pairs(queries, keys, problem.attrs, causal=True)
    seen = min(keys, problem.attrs.get("window_left", keys) + queries)
    row = k.shape[2] * (k.shape[3] + v.shape[3]) * itemsize(k.dtype)
    rest = (t.nbytes for name, t in problem.tensors.items() if name not in ("k_cache", "v_cache"))
    return Work(
        bytes=int(sequences * seen * row) + sum(rest),
        flops=2.0 * q.shape[1] * pairs * (k.shape[3] + v.shape[3]),
        dtype=q.dtype,
    )


def paged_inputs(
    rng: np.random.Generator,
    dtypes: tuple[str, str],
    shape: tuple[int, int, int, int],
    block_size: int,
    queries: Sequence[int],
    contexts: Sequence[int],
) -> dict[str, np.ndarray]:
    """Random inputs, queries[s] of contexts[s] keys. Blocks are out of order; those that no
    sequence owns, and every last block's tail, are NaN."""
    heads, kv_heads, dim, dim_v = shape
    need = [-(-length // block_size) for length in contexts]
    blocks = sum(need) + 2
    order = rng.permutation(blocks).astype(np.int32)
    table = np.full((len(contexts), max([*need, 1]) + 1), 2**30, np.int32)
    caches = {}
    for name, size in (("k_cache", dim), ("v_cache", dim_v)):
        cache, used = np.full((blocks, block_size, kv_heads, size), np.nan, np.float32), 0
        for s, count in enumerate(need):
            table[s, :count] = order[used : used + count]
            used += count
            for i, block in enumerate(table[s, :count]):
                valid = min(block_size, contexts[s] - i * block_size)
                cache[block, :valid] = rng.standard_normal((valid, kv_heads, size))
        caches[name] = cache.astype(numpy_dtype(dtypes[1]))
    return {
        "q": rng.standard_normal((sum(queries), heads, dim)).astype(numpy_dtype(dtypes[0])),
        **caches,
        "block_table": table,
        "context_len": np.array(contexts, np.int32),
    }


def with_options(
    rng: np.random.Generator, attrs: dict[str, Any], inputs: dict[str, np.ndarray]
) -> None:
    """Turns the markers "sinks" and "scales" (how many) of a case's attrs into inputs."""
    if attrs.pop("sinks", False):
        inputs["sinks"] = rng.standard_normal(inputs["q"].shape[1:2], dtype=np.float32)
    if count := attrs.pop("scales", 0):
        for name in ("k_scale", "v_scale"):
            inputs[name] = np.asarray(rng.uniform(0.2, 2.0, count), np.float32)


_BF16, _FP16 = ("bfloat16", "bfloat16"), ("float16", "float16")
_Shape = tuple[tuple[str, str], tuple[int, int, int, int], int, list[int], dict[str, Any]]
# dtypes of q and the cache, (H, Hk, D, Dv), block size, contexts, attrs
_SHAPES: list[_Shape] = [
    (_BF16, (3, 1, 80, 80), 16, [5, 0, 130], {}),
    (_FP16, (4, 4, 64, 64), 16, [1, 301], {}),
    (_BF16, (8, 2, 128, 128), 32, [290, 33], {}),
    (_FP16, (8, 2, 64, 64), 64, [400, 7], {"window_left": 100}),
    (_BF16, (7, 1, 96, 96), 16, [190], {"softcap": 3.0, "sinks": True}),
    (("bfloat16", "float8_e4m3fn"), (8, 2, 64, 64), 16, [140, 3], {"scales": 1}),
    (("float16", "float8_e4m3fn"), (4, 2, 64, 64), 32, [70], {"scales": 2}),
    (("float16", "float8_e5m2"), (4, 2, 64, 64), 32, [70], {}),
    (_FP16, (2, 1, 256, 256), 16, [150], {"scale": 0.02, "sinks": True}),
    (_BF16, (20, 1, 64, 64), 256, [300], {}),
    (_BF16, (4, 2, 64, 64), 16, [], {}),
    (_FP16, (6, 3, 16, 16), 16, [5, 40, 17], {}),
    (_FP16, (3, 1, 32, 32), 16, [33, 1], {}),
]


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """No sequences, no keys, one key, last partial blocks, tables out of order, head sizes that are
    no powers of two, windows, soft caps, sinks, 8-bit caches."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for dtypes, shape, block_size, contexts, options in _SHAPES:
        attrs = dict(options)
        inputs = paged_inputs(rng, dtypes, shape, block_size, [1] * len(contexts), contexts)
        with_options(rng, attrs, inputs)
        found.append((attrs, inputs))
    return found


def paged_specs(
    shape: tuple[int, int, int, int],
    batch: int,
    context: int,
    tokens: int,
    block_size: int = 16,
    cache: str = "bfloat16",
) -> dict[str, TensorSpec]:
    """Inputs of a benchmark: every context fills its row of the block table."""
    heads, kv_heads, dim, dim_v = shape
    width = -(-context // block_size)
    found = {
        "q": TensorSpec((tokens, heads, dim), "bfloat16"),
        "k_cache": TensorSpec((batch * width, block_size, kv_heads, dim), cache),
        "v_cache": TensorSpec((batch * width, block_size, kv_heads, dim_v), cache),
        "block_table": TensorSpec((batch, width), "int32"),
        "context_len": TensorSpec((batch,), "int32"),
    }
    if cache not in ("float16", "bfloat16"):
        found |= {"k_scale": TensorSpec((1,), "float32"), "v_scale": TensorSpec((1,), "float32")}
    return found


def bench_integers(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> dict[str, np.ndarray]:
    """The integer inputs of a benchmark: full contexts, blocks out of order. Queries that cannot be
    shared out evenly are one chunk and a token of every other sequence."""
    batch, width = specs["block_table"].shape
    order = np.random.default_rng(0).permutation(batch * width)
    length = width * specs["k_cache"].shape[1]
    found = {
        "block_table": order.reshape(batch, width).astype(np.int32),
        "context_len": np.full(batch, length, np.int32),
    }
    if "query_start" in specs:
        tokens = specs["q"].shape[0]
        start = np.arange(batch + 1) * (tokens // batch)
        if tokens % batch:  # one chunk beside single tokens
            start = np.append(0, tokens - batch + 1 + np.arange(batch))
        found["query_start"] = start.astype(np.int32)
    return found


def _bench(
    label: str, shape: tuple[int, int, int, int], batch: int, context: int, *rest: Any, **attrs: Any
) -> tuple[str, dict[str, Any], dict[str, TensorSpec]]:
    return label, attrs, paged_specs(shape, batch, context, batch, *rest)


_LLAMA2_7B = (32, 32, 128, 128)
_LLAMA3_8B = (32, 8, 128, 128)
_LLAMA3_70B = (64, 8, 128, 128)
# label, attrs, inputs; `bench_integers` fills the integer ones
BENCH: tuple[tuple[str, dict[str, Any], dict[str, TensorSpec]], ...] = (
    _bench("Llama-3-8B 32×4096", _LLAMA3_8B, 32, 4096),
    _bench("Llama-3-8B 32×4096, blocks of 64", _LLAMA3_8B, 32, 4096, 64),
    _bench("Llama-3-8B 32×4096, fp8 cache", _LLAMA3_8B, 32, 4096, 16, "float8_e4m3fn"),
    _bench("Llama-3-8B 1×4096", _LLAMA3_8B, 1, 4096),
    _bench("Llama-3-8B 1×131072", _LLAMA3_8B, 1, 131072),
    _bench("Llama-3-8B 128×1024", _LLAMA3_8B, 128, 1024),
    _bench("Llama-2-7B 32×2048", _LLAMA2_7B, 32, 2048),
    _bench("Llama-2-13B 16×2048", (40, 40, 128, 128), 16, 2048),
    _bench("Llama-3-70B 16×8192", _LLAMA3_70B, 16, 8192),
    _bench("Qwen3-30B 32×4096", (32, 4, 128, 128), 32, 4096),
    _bench("Mixtral-8x7B 32×8192, window 4096", _LLAMA3_8B, 32, 8192, window_left=4095),
    _bench("gpt-oss 32×4096, head 64", (64, 8, 64, 64), 32, 4096),
    _bench("gemma-2 32×4096, head 256", (16, 8, 256, 256), 32, 4096, softcap=50.0),
)


INPUTS = {
    "q": "dtype[S, H, D]",
    "k_cache": "dtype or 8-bit float[blocks, block_size, Hk, D], any strides but the last",
    "v_cache": "dtype or 8-bit float[blocks, block_size, Hk, Dv], any strides but the last",
    "block_table": "int32[S, M]",
    "context_len": "int32[S]",
    "k_scale": "float32 [] | [1] | [Hk], optional",
    "v_scale": "float32 [] | [1] | [Hk], optional",
    "sinks": "any float [H], optional",
}
AXES = {
    "S": "sequences",
    "H": "query heads",
    "Hk": "key heads (divides H)",
    "D": "head size",
    "Dv": "head size of values",
    "M": "width of the block table",
}

SPEC = OperatorSpec(
    name="paged_attention",
    formula="out[s, h] = Σ_p softmax_p(scale · q[s, h]·k[p]) v[p], p < context_len[s]",
    axes=AXES,
    inputs=INPUTS,
    outputs={"out": "dtype[S, H, Dv]"},
    reference=reference,
    tolerance={"bfloat16": 6e-3, "float16": 1e-3},
    cases=cases,
    triton_kernels=("pumice.operators.paged_attention.triton_plan:PagedAttention",),
    output_specs=output_specs,
    work=work,
)
