"""The graph operators that models are written with, over `tvm.relax.frontend.nn` tensors.

Each emits one call of an operator of ours (`operators/calls.py` says how a call carries its
argument names and attributes). Activations are float32, T is the number of tokens of a step.
Weights stand in their logical shape [N, K] as float32 whatever the file holds: the compiler decides
a weight's format by the parameter's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import relax
from tvm.relax.frontend.nn.core import wrap_nested

from pumice.operators.calls import make_call

Tensor = Any  # nn.Tensor: TVM has no type information


def _emit(
    operator: str, inputs: Mapping[str, Tensor | None], attrs: Mapping[str, Any], shape: list[Any]
) -> Tensor:
    given = {name: tensor._expr for name, tensor in inputs.items() if tensor is not None}
    out = relax.TensorType(shape, "float32")
    return wrap_nested(make_call(operator, given, attrs, [out]), name=operator)


def embedding(tokens: Tensor, weight: Tensor) -> Tensor:
    """weight[tokens]: tokens int32[T], weight [V, H] → [T, H]."""
    inputs = {"tokens": tokens, "weight": weight}
    return _emit("embedding", inputs, {}, [tokens.shape[0], weight.shape[1]])


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last axis of x[T, H]."""
    return _emit("rms_norm", {"x": x, "weight": weight}, {"eps": float(eps)}, x.shape)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x[T, K] · weight[N, K]ᵀ + bias[N] → [T, N]."""
    inputs = {"x": x, "weight": weight, "bias": bias}
    return _emit("linear", inputs, {}, [x.shape[0], weight.shape[0]])


def rope_table(positions: Tensor, inv_freq: Tensor, *, mscale: float = 1.0) -> Tensor:
    """(cos | sin) of positions int32[T] · inv_freq[D/2], times mscale → [T, D]."""
    inputs = {"positions": positions, "inv_freq": inv_freq}
    width = 2 * inv_freq.shape[0]
    return _emit("rope_table", inputs, {"mscale": float(mscale)}, [positions.shape[0], width])


def rope_append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    slots: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Rotates queries and keys, and writes keys and values to the cache at `slots`.

    q [T, heads·d], k and v [T, kv_heads·d] → rotated queries [T, heads·d]. With q_norm and k_norm
    [head_dim] each head is RMS-normalised first. The caches are written in place; attention reads
    the returned queries, which orders it after the write.
    """
    inputs = {
        "q": q, "k": k, "v": v, "table": table, "slots": slots, "q_norm": q_norm, "k_norm": k_norm,
        "k_cache": k_cache, "v_cache": v_cache,
    }  # fmt: skip
    attrs = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "rotary_dim": rotary_dim if rotary_dim not in (None, head_dim) else None,
        "interleaved": True if interleaved else None,
        "eps": float(eps) if q_norm is not None and eps is not None else None,
    }
    return _emit("rope_append", inputs, attrs, q.shape)


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    query_start: Tensor,
    context_len: Tensor,
    block_table: Tensor,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Causal attention of q[T, heads·d] over each sequence's blocks of the cache → [T, heads·d].

    window: keys p − window + 1 … p are seen from position p.
    """
    inputs = {
        "q": q, "k_cache": k_cache, "v_cache": v_cache, "query_start": query_start,
        "context_len": context_len, "block_table": block_table,
    }  # fmt: skip
    attrs = {
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "scale": float(scale),
        "window": window,
        "softcap": softcap,
    }
    return _emit("attention", inputs, attrs, q.shape)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, both [T, I]."""
    return _emit("silu_mul", {"gate": gate, "up": up}, {}, gate.shape)


def add(a: Tensor, b: Tensor) -> Tensor:
    """a + b, both [T, H]."""
    return _emit("add", {"a": a, "b": b}, {}, a.shape)


def gather_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows]: x [T, H], rows int32[R] → [R, H]."""
    return _emit("gather_rows", {"x": x, "rows": rows}, {}, [rows.shape[0], x.shape[1]])


__all__ = [
    "add", "attention", "embedding", "gather_rows", "linear", "rms_norm", "rope_append",
    "rope_table", "silu_mul",
]  # fmt: skip
