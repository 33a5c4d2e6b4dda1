"""`torch.ops.pumice.*`: custom operators with fake implementations, so that `torch.compile`, export
and CUDA graphs take them. Shapes, formulas and tolerances: `pumice/operators/<name>/spec.py`.

All raise UsageError for tensors that do not fit each other, with the argument's name and what is
allowed, while PyTorch traces, too; and what `dispatch.call` raises. `gemm` runs on the CPU as well.
None has gradients; `tgemm` has.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pumice.errors import UsageError
from pumice.torch.dispatch import call, check, tracing
from pumice.torch.launch import dtype_name

ACTIVATIONS = ("none", "silu", "gelu", "gelu_tanh", "relu")
GATES = ("silu", "gelu", "gelu_tanh")
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
FLOATS8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def _operator(
    mutates: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Any]:
    """Registers a function of the same name, for tensors with data and, while PyTorch traces, for
    those without."""

    def register(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def fake(*args: Any, **kwargs: Any) -> Any:
            token = tracing.set(True)
            try:
                return function(*args, **kwargs)
            finally:
                tracing.reset(token)

        made = torch.library.custom_op(
            f"pumice::{function.__name__}", function, mutates_args=tuple(mutates)
        )
        made.register_fake(fake)
        return made

    return register


def one_of(name: str, argument: str, value: Any, allowed: Sequence[Any]) -> None:
    """UsageError for a value that is not allowed."""
    if value not in allowed:
        raise UsageError(
            f"{name}: {argument} is {value!r}; allowed: {', '.join(map(str, allowed))}"
        )


def _attrs(**values: Any) -> dict[str, Any]:
    """Only what was given: absent attributes have the operator's defaults."""
    return {name: value for name, value in values.items() if value is not None}


def _out_dtype(name: str, dtype: torch.dtype) -> str:
    one_of(name, "out_dtype", dtype, FLOATS)
    return dtype_name(dtype)


@_operator()
def gemm(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """activation(x[M, K] · w[N, K]ᵀ + bias[N]) + residual[M, N]; bfloat16, float16 or float32."""
    one_of("pumice.gemm", "activation", activation, ACTIVATIONS)
    attrs = _attrs(
        activation=None if activation == "none" else activation,
        out_dtype=None if out_dtype is None else _out_dtype("pumice.gemm", out_dtype),
    )
    tensors = {"x": x, "w": w, "bias": bias, "residual": residual}
    return call("gemm", tensors, attrs)["out"]


@gemm.register_kernel("cpu")  # type: ignore[untyped-decorator]
def _(
    x: Tensor, w: Tensor, bias: Tensor | None = None, residual: Tensor | None = None,
    activation: str = "none", out_dtype: torch.dtype | None = None,
) -> Tensor:  # fmt: skip
    from pumice.torch import cpu

    one_of("pumice.gemm", "activation", activation, ACTIVATIONS)
    if out_dtype is not None:
        one_of("pumice.gemm", "out_dtype", out_dtype, FLOATS)
    check("pumice.gemm", "gemm", {"x": x, "w": w, "bias": bias, "residual": residual}, {})
    return cpu.gemm(x, w, bias, residual, activation, out_dtype)


@gemm.register_vmap  # type: ignore[untyped-decorator]
def _(info: Any, at: tuple[int | None, ...], x: Tensor, w: Tensor, *rest: Any) -> Any:
    """A batch of rows is more rows; a batch of anything else is a product after another."""
    if (
        at[0] is not None
        and all(place is None for place in at[1:])
        and (not rest[1:] or rest[1] is None)
    ):
        rows = x.movedim(at[0], 0)
        out = torch.ops.pumice.gemm(rows.flatten(0, 1), w, *rest)
        return out.view(*rows.shape[:2], w.shape[0]), 0
    each = (
        [
            t if place is None else t.select(place, index)
            for t, place in zip((x, w, *rest), at, strict=True)
        ]
        for index in range(info.batch_size)
    )
    return torch.stack([torch.ops.pumice.gemm(*one) for one in each]), 0


@_operator()
def gemm_w4(
    x: Tensor, w: Tensor, scales: Tensor, zeros: Tensor | None = None,
    bias: Tensor | None = None, group: int = 32, zero: int = 7, packing: str = "rows",
) -> Tensor:  # fmt: skip
    """x[M, K] · dequantize(w)ᵀ + bias; w int32[N, K/8] packed as `operators/gemm_w4/layout.py`."""
    one_of("pumice.gemm_w4", "packing", packing, ("rows", "blocks"))
    if group < 32 or group % 32:
        raise UsageError(f"pumice.gemm_w4: group is {group}; allowed: a multiple of 32")
    if not 0 <= zero <= 15:
        raise UsageError(f"pumice.gemm_w4: zero is {zero}; allowed: 0 to 15")
    tensors = {"x": x, "w": w, "scales": scales, "zeros": zeros, "bias": bias}
    attrs = {"group": group, "zero": zero, "packing": packing}
    return call("gemm_w4", tensors, attrs)["out"]


@_operator()
def gemm_fp8(
    x: Tensor, w: Tensor, x_scale: Tensor | None, w_scale: Tensor | None,
    bias: Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    """(x_scale·x[M, K]) · (w_scale·w[N, K])ᵀ + bias of 8-bit floats; scales whole or a row."""
    tensors = {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale, "bias": bias}
    return call("gemm_fp8", tensors, {"out_dtype": _out_dtype("pumice.gemm_fp8", out_dtype)})["out"]


@_operator()
def gemm_int8(
    x: Tensor, w: Tensor, x_scale: Tensor | None, w_scale: Tensor | None,
    bias: Tensor | None = None, out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    """As `gemm_fp8`, of int8."""
    tensors = {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale, "bias": bias}
    return call("gemm_int8", tensors, {"out_dtype": _out_dtype("pumice.gemm_int8", out_dtype)})[
        "out"
    ]


@_operator()
def gemm_fp8_block(
    x: Tensor, w: Tensor, x_scale: Tensor, w_scale: Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    """DeepSeek-V3's product: x_scale [M, ⌈K/128⌉], w_scale [⌈N/128⌉, ⌈K/128⌉]."""
    tensors = {"x": x, "w": w, "x_scale": x_scale, "w_scale": w_scale}
    attrs = {"out_dtype": _out_dtype("pumice.gemm_fp8_block", out_dtype)}
    return call("gemm_fp8_block", tensors, attrs)["out"]


@_operator()
def rms_norm(x: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Tensor:
    """x[T, H] / sqrt(mean(x²) + eps) · weight[H]."""
    attrs = {"kind": "rms", "eps": eps}
    return call("norm", {"x": x, "weight": weight}, attrs, name="pumice.rms_norm")["out"]


@_operator(mutates=("residual",))
def add_rms_norm_(x: Tensor, residual: Tensor, weight: Tensor | None, eps: float = 1e-6) -> Tensor:
    """residual += x, then the norm of residual; x, residual [T, H]."""
    name = "pumice.add_rms_norm_"
    strides = residual.stride()
    if any(size > 1 and step == 0 for size, step in zip(residual.shape, strides, strict=True)):
        raise UsageError(
            f"{name}: residual {list(residual.shape)} has strides {list(strides)}, several "
            "elements in one place; allowed: a place for each, as it is written to"
        )
    tensors = {"x": x, "residual": residual, "weight": weight}
    return call("norm", tensors, {"kind": "rms", "eps": eps}, name=name)["out"]


@_operator()
def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """(x − mean) / sqrt(var + eps) · weight + bias over the last axis of x[T, H]."""
    tensors = {"x": x, "weight": weight, "bias": bias}
    return call("norm", tensors, {"kind": "layer", "eps": eps}, name="pumice.layer_norm")["out"]


@_operator()
def activation_mul(x: Tensor, activation: str = "silu") -> Tensor:
    """activation(x[:, :F]) · x[:, F:] of x[T, 2F]."""
    one_of("pumice.activation_mul", "activation", activation, GATES)
    return call("activation_mul", {"x": x}, {"activation": activation})["out"]


@_operator()
def quantize_fp8(
    x: Tensor, mode: str = "token", dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """Rows of x[T, H] to 8 bits with scales: mode "tensor", "token" or "group" (128 columns)."""
    name = "pumice.quantize_fp8"
    one_of(name, "mode", mode, ("tensor", "token", "group"))
    one_of(name, "dtype", dtype, (*FLOATS8, torch.int8))
    attrs = {"quantize": mode, "out_dtype": dtype_name(dtype)}
    made = call("quantize_fp8", {"x": x}, attrs)
    return made["out"], made["scales"]


@_operator()
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


@_operator()
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
