"""attention: causal attention of a ragged batch over a paged cache, with grouped query heads.

attrs: heads, kv_heads (divides heads), head_dim, block_size; scale (1/sqrt(head_dim) by default),
window (a query sees at most that many positions, its own included), softcap (logits become
c·tanh(logits/c)); quantize (bool) with sum_group 32 or 16 gives the three arrays of
`operators/quantized.py`.

Sequence s owns queries query_start[s] … query_start[s+1]−1, the last ones of its context_len[s]
positions; position p lies in block block_table[s, p // block_size] at offset p % block_size. Cache
layouts: `operators/rope/spec.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.quantized import output


def _context(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray], s: int
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of sequence s, float64 [kv_heads, context, head_dim]."""
    length, size = int(inputs["context_len"][s]), attrs["block_size"]
    blocks = inputs["block_table"][s, : -(-length // size)]
    k = inputs["k_cache"][blocks].astype(np.float64)  # [n, kv_heads, head_dim, block_size]
    v = inputs["v_cache"][blocks].astype(np.float64)  # [n, kv_heads, block_size, head_dim]
    shape = (attrs["kv_heads"], -1, attrs["head_dim"])
    keys = k.transpose(1, 0, 3, 2).reshape(shape)[:, :length]
    return keys, v.transpose(1, 0, 2, 3).reshape(shape)[:, :length]


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """softmax(scale · q·kᵀ + mask)·v, a sequence at a time, float64."""
    heads, kv_heads, dim = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    scale = attrs.get("scale", dim**-0.5)
    q = inputs["q"].astype(np.float64).reshape(-1, heads, dim)
    out = np.zeros_like(q)
    start = inputs["query_start"]
    for s in range(len(inputs["context_len"])):
        keys, values = _context(attrs, inputs, s)
        rows = slice(int(start[s]), int(start[s + 1]))
        count, length = rows.stop - rows.start, keys.shape[1]
        position = np.arange(length - count, length)[:, None]
        column = np.arange(length)[None, :]
        visible = column <= position
        if attrs.get("window"):
            visible &= column > position - attrs["window"]
        for h in range(heads):
            kv = h // (heads // kv_heads)
            logits = q[rows, h] @ keys[kv].T * scale
            if attrs.get("softcap"):
                logits = attrs["softcap"] * np.tanh(logits / attrs["softcap"])
            logits = np.where(visible, logits, -np.inf)
            p = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-1e300))
            out[rows, h] = p @ values[kv] / p.sum(axis=1, keepdims=True)
    return output(attrs, out.reshape(len(q), heads * dim))


def batch(
    rng: np.random.Generator, attrs: Mapping[str, Any], counts: list[int], contexts: list[int]
) -> dict[str, np.ndarray]:
    """Random inputs: sequence s brings counts[s] queries of contexts[s] positions. Blocks are not
    in order; what no sequence owns, and the tail of every last block, is NaN."""
    size, dim, kv_heads = attrs["block_size"], attrs["head_dim"], attrs["kv_heads"]
    need = [-(-c // size) for c in contexts]
    blocks = sum(need) + 2
    order = rng.permutation(blocks).astype(np.int32)
    table = np.zeros((len(counts), max([*need, 1]) + 1), np.int32)
    k = np.full((blocks, kv_heads, dim, size), np.nan, np.float16)
    v = np.full((blocks, kv_heads, size, dim), np.nan, np.float16)
    used = 0
    for s, n in enumerate(need):
        table[s, :n] = order[used : used + n]
        used += n
        for i, block in enumerate(table[s, :n]):
            valid = min(size, contexts[s] - i * size)
            k[block, :, :, :valid] = rng.standard_normal((kv_heads, dim, valid))
            v[block, :, :valid] = rng.standard_normal((kv_heads, valid, dim))
    return {
        "q": rng.standard_normal((sum(counts), attrs["heads"] * dim), dtype=np.float32),
        "k_cache": k,
        "v_cache": v,
        "query_start": np.cumsum([0, *counts]).astype(np.int32),
        "context_len": np.array(contexts, np.int32),
        "block_table": table,
    }


_SMOL = {"heads": 9, "kv_heads": 3, "head_dim": 64}
_SHAPES: list[tuple[dict[str, Any], list[int], list[int]]] = [
    (_SMOL, [5], [5]),
    (_SMOL, [], []),
    (_SMOL, [1], [1]),
    (_SMOL, [1, 33, 64], [1, 33, 64]),
    (_SMOL, [1, 0, 7, 40], [97, 5, 300, 65]),
    (_SMOL | {"quantize": True, "sum_group": 16}, [3, 50], [70, 50]),
    (_SMOL | {"window": 33}, [1, 90, 3], [200, 90, 131]),
    ({"heads": 4, "kv_heads": 4, "head_dim": 16}, [17, 1], [17, 45]),
    ({"heads": 8, "kv_heads": 1, "head_dim": 32, "softcap": 2.5}, [9, 1], [64, 32]),
    ({"heads": 8, "kv_heads": 2, "head_dim": 128}, [2, 31], [290, 31]),
    ({"heads": 2, "kv_heads": 2, "head_dim": 80, "scale": 0.3}, [65], [129]),
    ({"heads": 3, "kv_heads": 1, "head_dim": 96}, [10], [10]),
    ({"heads": 16, "kv_heads": 1, "head_dim": 256, "quantize": True}, [3, 1], [40, 77]),
    ({"heads": 7, "kv_heads": 1, "head_dim": 32, "block_size": 64}, [5, 70], [133, 70]),
]


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Ragged batches, no sequences, one query, last partial blocks, windows, tables out of order,
    many head shapes."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for shape, counts, contexts in _SHAPES:
        attrs = {"block_size": 32, **shape}
        found.append((attrs, batch(rng, attrs, counts, contexts)))
    return found


SPEC = OperatorSpec(
    name="attention",
    formula="out[t, h] = Σ_p softmax_p(scale · q[t, h]·k[p]) v[p], p ≤ position(t)",
    axes={"T": "tokens", "S": "sequences", "M": "block table width", "C": "heads·head_dim"},
    inputs={
        "q": "float32[T, C]",
        "k_cache": "float16[blocks, kv_heads, head_dim, block_size]",
        "v_cache": "float16[blocks, kv_heads, block_size, head_dim]",
        "query_start": "int32[S+1]",
        "context_len": "int32[S]",
        "block_table": "int32[S, M]",
    },
    outputs={"out": "float32[T, C]"},
    reference=reference,
    tolerance={"float32": 2e-6, "int8": 1e-2},
    cases=cases,
    kernels=("pumice.operators.attention.kernel_tir:Attention",),
)
