"""`torch.ops.pumice.*`: custom operators with fake implementations, so that `torch.compile`, export
and CUDA graphs take them. Shapes, formulas and tolerances: `pumice/operators/<name>/spec.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pumice.torch.dispatch import call, output_specs


def _fake(
    operator: str, tensors: Mapping[str, Tensor | None], attrs: Mapping[str, Any]
) -> dict[str, Tensor]:
    like = next(t for t in tensors.values() if t is not None)
    return {
        name: like.new_empty(spec.shape, dtype=getattr(torch, spec.dtype))
        for name, spec in output_specs(operator, tensors, attrs).items()
    }


def _attrs(**values: Any) -> dict[str, Any]:
    """Only what was given: absent attributes have the operator's defaults."""
    return {name: value for name, value in values.items() if value is not None}


def _gemm_attrs(activation: str, out_dtype: torch.dtype | None) -> dict[str, Any]:
    return _attrs(
        activation=None if activation == "none" else activation,
        out_dtype=None if out_dtype is None else str(out_dtype).removeprefix("torch."),
    )


@torch.library.custom_op("pumice::gemm", mutates_args=())
def gemm(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """activation(x[M, K] · w[N, K]ᵀ + bias[N]) + residual[M, N]; bfloat16, float16 or float32."""
    tensors = {"x": x, "w": w, "bias": bias, "residual": residual}
    return call("gemm", tensors, _gemm_attrs(activation, out_dtype))["out"]


@gemm.register_fake
def _(
    x: Tensor, w: Tensor, bias: Tensor | None = None, residual: Tensor | None = None,
    activation: str = "none", out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    dtype = x.dtype if out_dtype is None else out_dtype
    return x.new_empty((x.shape[0], w.shape[0]), dtype=dtype)


@torch.library.custom_op("pumice::gemm_w4", mutates_args=())
def gemm_w4(
    x: Tensor, w: Tensor, scales: Tensor, zeros: Tensor | None = None,
    bias: Tensor | None = None, group: int = 32, zero: int = 7, packing: str = "rows",
) -> Tensor:  # fmt: skip
    """x[M, K] · dequantize(w)ᵀ + bias; w int32[N, K/8] packed as `operators/gemm_w4/layout.py`."""
    tensors = {"x": x, "w": w, "scales": scales, "zeros": zeros, "bias": bias}
    attrs = {"group": group, "zero": zero, "packing": packing}
    return call("gemm_w4", tensors, attrs)["out"]


@gemm_w4.register_fake
def _(
    x: Tensor, w: Tensor, scales: Tensor, zeros: Tensor | None = None,
    bias: Tensor | None = None, group: int = 32, zero: int = 7, packing: str = "rows",
) -> Tensor:  # fmt: skip
    return x.new_empty((x.shape[0], w.shape[0]))


def _dtype_attr(out_dtype: torch.dtype) -> dict[str, Any]:
    return {"out_dtype": str(out_dtype).removeprefix("torch.")}


def _product(x: Tensor, w: Tensor, out_dtype: torch.dtype) -> Tensor:
    return x.new_empty((x.shape[0], w.shape[0]), dtype=out_dtype)


@torch.library.custom_op("pumice::gemm_fp8", mutates_args=())
def gemm_fp8(
    x: Tensor, w: Tensor, x_scale: Tensor | None, w_scale: Tensor | None,
    bias: Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    """(x_scale·x[M, K]) · (w_scale·w[N, K])ᵀ + bias of 8-bit floats; scales whole or a row."""
    tensors = {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale, "bias": bias}
    return call("gemm_fp8", tensors, _dtype_attr(out_dtype))["out"]


@gemm_fp8.register_fake
def _(
    x: Tensor, w: Tensor, x_scale: Tensor | None, w_scale: Tensor | None,
    bias: Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    return _product(x, w, out_dtype)


@torch.library.custom_op("pumice::gemm_int8", mutates_args=())
def gemm_int8(
    x: Tensor, w: Tensor, x_scale: Tensor | None, w_scale: Tensor | None,
    bias: Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    """As `gemm_fp8`, of int8."""
    tensors = {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale, "bias": bias}
    return call("gemm_int8", tensors, _dtype_attr(out_dtype))["out"]


@gemm_int8.register_fake
def _(
    x: Tensor, w: Tensor, x_scale: Tensor | None, w_scale: Tensor | None,
    bias: Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    return _product(x, w, out_dtype)


@torch.library.custom_op("pumice::gemm_fp8_block", mutates_args=())
def gemm_fp8_block(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    """DeepSeek-V3's product: x_scale [M, ⌈K/128⌉], w_scale [⌈N/128⌉, ⌈K/128⌉]."""
    tensors = {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale}
    return call("gemm_fp8_block", tensors, _dtype_attr(out_dtype))["out"]


@gemm_fp8_block.register_fake
def _(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    return _product(x, w, out_dtype)


@torch.library.custom_op("pumice::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Tensor:
    """x[T, H] / sqrt(mean(x²) + eps) · weight[H]."""
    return call("norm", {"x": x, "weight": weight}, {"kind": "rms", "eps": eps})["out"]


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pumice::add_rms_norm_", mutates_args=("residual",))
def add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Tensor:
    """residual += x, then the norm of residual; x, residual [T, H]."""
    tensors = {"x": x, "residual": residual, "weight": weight}
    return call("norm", tensors, {"kind": "rms", "eps": eps})["out"]


@add_rms_norm_.register_fake
def _(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pumice::layer_norm", mutates_args=())
def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x − mean) / sqrt(var + eps) · weight + bias over the last axis of x[T, H]."""
    tensors = {"x": x, "weight": weight, "bias": bias}
    return call("norm", tensors, {"kind": "layer", "eps": eps})["out"]


@layer_norm.register_fake
def _(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("pumice::activation_mul", mutates_args=())
def activation_mul(x: Tensor, activation: str = "silu") -> Tensor:
    """activation(x[:, :F]) · x[:, F:] of x[T, 2F]."""
    return call("activation_mul", {"x": x}, {"activation": activation})["out"]


@activation_mul.register_fake
def _(x: Tensor, activation: str = "silu") -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1] // 2))


@torch.library.custom_op("pumice::quantize_fp8", mutates_args=())
def quantize_fp8(
    x: Tensor, mode: str = "token", dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Rows of x[T, H] to 8 bits with scales: mode "tensor", "token" or "group" (128 columns)."""
    attrs = {"quantize": mode, "out_dtype": str(dtype).removeprefix("torch.")}
    made = call("quantize_fp8", {"x": x}, attrs)
    return made["out"], made["scales"]


@quantize_fp8.register_fake
def _(
    x: Tensor, mode: str = "token", dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    attrs = {"quantize": mode, "out_dtype": str(dtype).removeprefix("torch.")}
    made = _fake("quantize_fp8", {"x": x}, attrs)
    return made["out"], made["scales"]


@torch.library.custom_op("pumice::flash_attention", mutates_args=())
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    causal: bool = True, scale: float | None = None, window_left: int = -1,
    window_right: int = -1, softcap: float = 0.0, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of a ragged batch: q[T, H, D], k[Tk, Hk, D], v[Tk, Hk, Dv]."""
    tensors = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q,
               "cu_seqlens_k": cu_seqlens_k, "sinks": sinks}  # fmt: skip
    attrs = _attrs(
        causal=causal,
        scale=scale,
        window_left=None if window_left == -1 else window_left,
        window_right=None if window_right == -1 else window_right,
        softcap=softcap or None,
    )
    return call("flash_attention", tensors, attrs)["out"]


@flash_attention.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    causal: bool = True, scale: float | None = None, window_left: int = -1,
    window_right: int = -1, softcap: float = 0.0, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return q.new_empty((q.shape[0], q.shape[1], v.shape[2]))


@torch.library.custom_op("pumice::paged_attention", mutates_args=())
def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_len: Tensor,
    scale: float | None = None, window_left: int = -1, softcap: float = 0.0,
    k_scale: Tensor | None = None, v_scale: Tensor | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """One new token a sequence over a paged cache: q[S, H, D], caches [blocks, size, Hk, D]."""
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "block_table": block_table,
               "context_len": context_len, "k_scale": k_scale, "v_scale": v_scale,
               "sinks": sinks}  # fmt: skip
    attrs = _attrs(
        scale=scale,
        window_left=None if window_left == -1 else window_left,
        softcap=softcap or None,
    )
    return call("paged_attention", tensors, attrs)["out"]


@paged_attention.register_fake
def _(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_len: Tensor,
    scale: float | None = None, window_left: int = -1, softcap: float = 0.0,
    k_scale: Tensor | None = None, v_scale: Tensor | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return q.new_empty((q.shape[0], q.shape[1], v_cache.shape[3]))
