"""flash_attention: attention of a ragged batch over plain keys and values (Dao, arXiv:2307.08691).

attrs: scale (1/sqrt(D) when absent), causal, window_left and window_right (keys that a query sees
before and after its own position; −1: all of them), softcap (logits become c·tanh(logits / c); 0:
none), lse (bool: give the logarithm of the softmax's denominator, too).

Sequence s owns the rows cu_seqlens_q[s] … cu_seqlens_q[s+1] − 1 of q and those of cu_seqlens_k of k
and v; a dense batch has equal steps. Its last query stands at its last key's position. Query head h
reads key head h // (H / Hk). A sink is one more logit of a head, with no value behind it (Xiao et
al., arXiv:2309.17453); `lse` counts it. A query that sees no key gives 0, and −∞ as `lse`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.triton.plan import Problem, TensorSpec, Work


def attend(
    attrs: Mapping[str, Any],
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    sinks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """One sequence: q [queries, H, D], k [keys, Hk, D], v [keys, Hk, Dv] → out [queries, H, Dv] and
    lse [H, queries], float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    queries, heads, dim = q.shape
    keys, kv_heads = k.shape[:2]
    position = np.arange(queries)[:, None] + keys - queries
    column = np.arange(keys)[None, :]
    right = 0 if attrs.get("causal") else attrs.get("window_right", -1)
    left = attrs.get("window_left", -1)
    visible = np.ones((queries, keys), bool)
    if right >= 0:
        visible &= column <= position + right
    if left >= 0:
        visible &= column >= position - left
    out = np.zeros((queries, heads, v.shape[2]))
    lse = np.full((heads, queries), -np.inf)
    for h in range(heads):
        kv = h // (heads // kv_heads)
        logits = q[:, h] @ k[:, kv].T * attrs.get("scale", dim**-0.5)
        if attrs.get("softcap"):
            logits = attrs["softcap"] * np.tanh(logits / attrs["softcap"])
        logits = np.where(visible, logits, -np.inf)
        peak = logits.max(axis=1, initial=-1e300)
        if sinks is not None:
            peak = np.maximum(peak, float(sinks[h]))
        p = np.exp(logits - peak[:, None])
        total = p.sum(axis=1)
        if sinks is not None:
            total = total + np.exp(float(sinks[h]) - peak)
        some = total > 0
        out[some, h] = p[some] @ v[:, kv] / total[some, None]
        lse[h, some] = peak[some] + np.log(total[some])
    return out, lse


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """softmax(scale · q·kᵀ + mask)·v, a sequence at a time, float64."""
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    starts_q, starts_k = inputs["cu_seqlens_q"], inputs["cu_seqlens_k"]
    out = np.zeros((*q.shape[:2], v.shape[2]))
    lse = np.zeros((q.shape[1], q.shape[0]))
    for s in range(len(starts_q) - 1):
        rows = slice(int(starts_q[s]), int(starts_q[s + 1]))
        keys = slice(int(starts_k[s]), int(starts_k[s + 1]))
        out[rows], lse[:, rows] = attend(attrs, q[rows], k[keys], v[keys], inputs.get("sinks"))
    return {"out": out, "lse": lse} if attrs.get("lse") else {"out": out}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    tokens, heads, _ = specs["q"].shape
    found = {"out": TensorSpec((tokens, heads, specs["v"].shape[2]), specs["q"].dtype)}
    if attrs.get("lse"):
        found["lse"] = TensorSpec((heads, tokens), "float32")
    return found


def visible_pairs(
    queries: float, keys: float, attrs: Mapping[str, Any], *, causal: bool = False
) -> float:
    """Pairs of a query and a key it sees, of one sequence; an estimate at the ends of windows."""
    causal = causal or bool(attrs.get("causal"))
    left, right = attrs.get("window_left", -1), attrs.get("window_right", -1)
    behind = keys - (queries - 1) / 2  # of an average query, its own position included
    ahead = 0.0 if causal else (queries - 1) / 2
    seen = min(behind, left + 1) if left >= 0 else behind
    return queries * (seen + (min(ahead, right) if right >= 0 else ahead))


def work(problem: Problem) -> Work:
    """Least bytes and operations, sequences taken as equally long."""
    tensors = problem.tensors
    sequences = max(problem["cu_seqlens_q"].shape[0] - 1, 1)
    tokens, heads, dim = problem["q"].shape
    keys, _, dim_v = problem["v"].shape
    pairs = sequences * visible_pairs(tokens / sequences, keys / sequences, problem.attrs)
    return Work(
        bytes=sum(t.nbytes for t in tensors.values()),
        flops=2.0 * heads * pairs * (dim + dim_v),
        dtype=problem["q"].dtype,
    )


_Shape = tuple[str, tuple[int, int, int, int], list[int], list[int], dict[str, Any]]
# dtype, (H, Hk, D, Dv), queries and keys of each sequence, attrs
_SHAPES: list[_Shape] = [
    ("bfloat16", (3, 1, 80, 80), [5, 0, 33], [5, 3, 70], {"causal": True, "lse": True}),
    ("float16", (4, 2, 64, 64), [1, 1, 7], [97, 1, 0], {"causal": True, "lse": True}),
    ("bfloat16", (2, 2, 96, 96), [17], [45], {}),
    ("float16", (4, 2, 64, 64), [150, 1], [150, 64], {"causal": True}),
    ("bfloat16", (6, 2, 64, 64), [40, 3], [200, 131], {"causal": True, "window_left": 33}),
    ("float16", (2, 1, 64, 64), [130], [150], {"window_left": 20, "window_right": 9}),
    ("bfloat16", (8, 1, 128, 128), [9], [140], {"causal": True, "softcap": 2.5, "sinks": True}),
    ("float16", (2, 1, 192, 128), [30], [30], {"causal": True, "scale": 0.3, "lse": True}),
    ("bfloat16", (2, 2, 256, 256), [3, 20], [40, 12], {"causal": True, "sinks": True, "lse": True}),
    ("float16", (7, 1, 64, 64), [1, 2], [70, 133], {"causal": True, "softcap": 30.0}),
    ("bfloat16", (2, 1, 64, 64), [], [], {"causal": True}),
    # Rows enough for Hopper's kernel.
    ("bfloat16", (1, 1, 128, 128), [49], [60], {"causal": True, "lse": True}),
]


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Ragged batches with empty sequences, one query, more queries than keys, windows, soft caps,
    sinks, head sizes that are no powers of two, last partial blocks."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for name, (heads, kv_heads, dim, dim_v), queries, keys, options in _SHAPES:
        attrs, dtype = dict(options), numpy_dtype(name)
        inputs = {
            "q": rng.standard_normal((sum(queries), heads, dim)).astype(dtype),
            "k": rng.standard_normal((sum(keys), kv_heads, dim)).astype(dtype),
            "v": rng.standard_normal((sum(keys), kv_heads, dim_v)).astype(dtype),
            "cu_seqlens_q": np.cumsum([0, *queries]).astype(np.int32),
            "cu_seqlens_k": np.cumsum([0, *keys]).astype(np.int32),
        }
        if attrs.pop("sinks", False):
            inputs["sinks"] = rng.standard_normal(heads, dtype=np.float32)
        found.append((attrs, inputs))
    return found


def _dense(
    label: str,
    shape: tuple[int, int, int, int],
    batch: int,
    queries: int,
    keys: int = 0,
    **attrs: Any,
) -> tuple[str, dict[str, Any], dict[str, TensorSpec]]:
    heads, kv_heads, dim, dim_v = shape
    keys = keys or queries
    starts = TensorSpec((batch + 1,), "int32")
    tensors = {
        "q": TensorSpec((batch * queries, heads, dim), "bfloat16"),
        "k": TensorSpec((batch * keys, kv_heads, dim), "bfloat16"),
        "v": TensorSpec((batch * keys, kv_heads, dim_v), "bfloat16"),
        "cu_seqlens_q": starts,
        "cu_seqlens_k": starts,
    }
    return label, {"causal": True, **attrs}, tensors


_LLAMA2_7B = (32, 32, 128, 128)
_LLAMA3_8B = (32, 8, 128, 128)
# label, attrs, inputs; `bench_integers` fills the integer ones
BENCH: tuple[tuple[str, dict[str, Any], dict[str, TensorSpec]], ...] = (
    _dense("Llama-2-7B 1×4096", _LLAMA2_7B, 1, 4096),
    _dense("Llama-2-7B 4×4096", _LLAMA2_7B, 4, 4096),
    _dense("Llama-2-7B 4×4096, not causal", _LLAMA2_7B, 4, 4096, causal=False),
    _dense("Llama-2-13B 2×4096", (40, 40, 128, 128), 2, 4096),
    _dense("Llama-3-8B 4×4096", _LLAMA3_8B, 4, 4096),
    _dense("Llama-3-8B 1×16384", _LLAMA3_8B, 1, 16384),
    _dense("Llama-3-8B 16×512", _LLAMA3_8B, 16, 512),
    _dense("Llama-3-8B 8×16 after 4096", _LLAMA3_8B, 8, 16, 4112),
    _dense("Llama-3-8B 1×8192, window 1024", _LLAMA3_8B, 1, 8192, window_left=1023),
    _dense("Llama-3-70B 1×8192", (64, 8, 128, 128), 1, 8192),
    _dense("Qwen3-8B 2×4096", (32, 8, 128, 128), 2, 4096),
    _dense("Mixtral-8x7B 1×8192, window 4096", _LLAMA3_8B, 1, 8192, window_left=4095),
    _dense("gemma-2 head 256 2×4096, cap 50", (16, 8, 256, 256), 2, 4096, softcap=50.0),
    _dense("head 64 4×4096", (32, 8, 64, 64), 4, 4096),
    _dense("DeepSeek-V3 prefill 1×4096", (128, 128, 192, 128), 1, 4096),
)


def bench_integers(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> dict[str, np.ndarray]:
    """The integer inputs of a benchmark: equal sequences."""
    found = {}
    for name, rows in (("cu_seqlens_q", "q"), ("cu_seqlens_k", "k")):
        steps = specs[name].shape[0] - 1
        found[name] = (np.arange(steps + 1) * (specs[rows].shape[0] // steps)).astype(np.int32)
    return found


SPEC = OperatorSpec(
    name="flash_attention",
    formula="out[t, h] = Σ_j softmax_j(scale · q[t, h]·k[j]) v[j], j visible from t",
    axes={
        "T": "queries of all sequences",
        "Tk": "keys of all sequences",
        "S": "sequences",
        "H": "query heads",
        "Hk": "key heads (divides H)",
        "D": "head size",
        "Dv": "head size of values",
    },
    inputs={
        "q": "dtype[T, H, D]",
        "k": "dtype[Tk, Hk, D]",
        "v": "dtype[Tk, Hk, Dv]",
        "cu_seqlens_q": "int32[S+1]",
        "cu_seqlens_k": "int32[S+1]",
        "sinks": "any float [H], optional",
    },
    outputs={"out": "dtype[T, H, Dv]", "lse": "float32[H, T], with attrs lse"},
    reference=reference,
    tolerance={"bfloat16": 6e-3, "float16": 1e-3, "float32": 1e-5},
    cases=cases,
    triton_kernels=(
        "pumice.operators.flash_attention.triton_plan:FlashAttention",
        "pumice.operators.flash_attention.hopper_plan:FlashAttentionHopper",
    ),
    output_specs=output_specs,
    work=work,
)
