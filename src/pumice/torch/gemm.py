"""`tgemm.mm`: a linear layer's product with the signature that AITER made known, with gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pumice.errors import UsageError
from pumice.torch import operators  # noqa: F401  (registers torch.ops.pumice)

FLOATS8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class _Linear(torch.autograd.Function):
    """y = x·wᵀ + b; every product of the backward pass is the same operator on transposed views."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, out: Any) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias = bias is not None
        return product(x, weight, bias, out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.to(x.dtype)
        dx = product(grad, weight.t().contiguous()) if ctx.needs_input_grad[0] else None
        dw = None
        if ctx.needs_input_grad[1]:
            dw = product(grad.t().contiguous(), x.t().contiguous())
        db = grad.sum(0) if ctx.bias and ctx.needs_input_grad[2] else None
        return dx, dw, db, None


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """x[M, K] · weight[N, K]ᵀ + bias[N] without gradients, on whichever device the tensors are."""
    if x.device.type == "cpu":
        from pumice.torch.cpu import linear

        return linear(x, weight, bias, out_dtype)
    out: Tensor = torch.ops.pumice.gemm(x, weight, bias, None, "none", out_dtype)
    return out


class TunedGemm:
    """Products whose kernel is chosen by measurement."""

    def mm(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        scale_a: Tensor | None = None,
        scale_b: Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        """x[…, K] · weight[N, K]ᵀ (+ bias[N]) → […, N].

        x and weight: bfloat16, float16 or float32, the same. scale_a, scale_b: of 8-bit operands
        (x by token or whole, weight by row or whole), None for others. out_dtype: that of x when
        None. UsageError names an argument that is not allowed.
        """
        self._check(x, weight, bias)
        if scale_a is not None or scale_b is not None:
            return self._scaled(x, weight, bias, scale_a, scale_b, out_dtype)
        if x.dtype not in FLOATS:
            raise UsageError(
                f"tgemm.mm: x is {x.dtype} without scales; allowed: float16, bfloat16, float32, "
                "or an 8-bit type with scale_a and scale_b"
            )
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        needs = torch.is_grad_enabled() and any(
            t is not None and t.requires_grad for t in (x, weight, bias)
        )
        out = (
            _Linear.apply(rows, weight, bias, out_dtype)  # type: ignore[no-untyped-call]
            if needs
            else product(rows, weight, bias, out_dtype)
        )
        return out.reshape(*x.shape[:-1], weight.shape[0])

    __call__ = mm

    @staticmethod
    def _check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
            raise UsageError(
                f"tgemm.mm: x is {list(x.shape)} and weight {list(weight.shape)}; allowed: "
                "x [..., K] with weight [N, K]"
            )
        if x.dtype != weight.dtype:
            raise UsageError(f"tgemm.mm: x is {x.dtype}, weight {weight.dtype}; they must agree")
        if bias is not None and tuple(bias.shape) != (weight.shape[0],):
            raise UsageError(f"tgemm.mm: bias is {list(bias.shape)}; allowed: [{weight.shape[0]}]")
        places = {t.device for t in (x, weight, bias) if t is not None}
        if len(places) > 1:
            raise UsageError(
                "tgemm.mm: tensors lie on several devices: "
                + ", ".join(sorted(str(place) for place in places))
            )

    @staticmethod
    def _scaled(
        x: Tensor, weight: Tensor, bias: Tensor | None, scale_a: Tensor | None,
        scale_b: Tensor | None, out_dtype: torch.dtype | None,
    ) -> Tensor:  # fmt: skip
        if scale_a is None or scale_b is None:
            raise UsageError("tgemm.mm: 8-bit operands need both scale_a and scale_b")
        if x.dtype == torch.int8:
            run = torch.ops.pumice.gemm_int8
        elif x.dtype in FLOATS8:
            run = torch.ops.pumice.gemm_fp8
        else:
            raise UsageError(
                f"tgemm.mm: x is {x.dtype} with scales; allowed: int8, "
                + ", ".join(str(dtype) for dtype in FLOATS8)
            )
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        out: Tensor = run(rows, weight, scale_a, scale_b, bias, out_dtype or torch.bfloat16)
        return out.reshape(*x.shape[:-1], weight.shape[0])


tgemm = TunedGemm()
