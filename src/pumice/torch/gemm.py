"""`tgemm.mm`: a linear layer's product with the signature that AITER made known, with gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from pumice.errors import DeviceError, UsageError
from pumice.torch.dispatch import given_tensors
from pumice.torch.operators import FLOATS, FLOATS8, one_of

_NAME = "tgemm.mm"


def autocast(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
    """Floats of up to 32 bits in the type that `torch.autocast` asks for on the first's device, as
    PyTorch's own products take them; all as they are where it is off."""
    device = next((t.device.type for t in tensors if t is not None), "meta")
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t if t is None or t.dtype not in FLOATS else t.to(dtype) for t in tensors)


class _Linear(torch.autograd.Function):
    """y = x·wᵀ + b. Every product of its derivatives is itself, so that they have derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, out: Any) -> Tensor:
        return _product(x, weight, bias, out)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.out = inputs
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)
        ctx.bias = None if bias is None else bias.dtype

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        narrow = grad.to(x.dtype)
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = _linear(narrow, weight.t().contiguous())
        if ctx.needs_input_grad[1]:
            dw = _linear(narrow.t().contiguous(), x.t().contiguous())
        if ctx.needs_input_grad[2]:
            db = grad.sum(0, dtype=torch.float32).to(ctx.bias)
        return dx, dw, db, None

    @staticmethod
    def jvp(ctx: Any, dx: Any, dw: Any, db: Any, _: Any) -> Tensor:
        """Forward mode: dx·wᵀ + x·dwᵀ + db."""
        x, weight = ctx.saved_tensors
        parts = [] if dx is None else [_linear(dx, weight, None, ctx.out)]
        parts += [] if dw is None else [_linear(x, dw, None, ctx.out)]
        found: Tensor = sum(parts, start=torch.zeros((), device=x.device))
        found = found if db is None else found + db
        return found.expand(x.shape[0], weight.shape[0]).to(ctx.out or x.dtype)


class _Compiled(torch.autograd.Function):
    """`_Linear` for torch.compile, which takes no functions with forward mode."""

    forward = staticmethod(_Linear.forward)
    setup_context = staticmethod(_Linear.setup_context)
    backward = staticmethod(_Linear.backward)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, out: torch.dtype | None) -> Tensor:
    found: Tensor = torch.ops.pumice.gemm(x, weight, bias, None, "none", out)
    return found


def _is_dual(tensor: Tensor) -> bool:
    return unpack_dual(tensor).tangent is not None  # type: ignore[no-untyped-call]


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, out: torch.dtype | None = None
) -> Tensor:
    """x[M, K] · weight[N, K]ᵀ + bias[N], with derivatives where one may be asked for."""
    compiling = torch.compiler.is_compiling()
    given = [t for t in (x, weight, bias) if t is not None]
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    if not wanted and not compiling:
        # A transform hides what it asks for; a function asks `apply` the same.
        wanted = torch._C._are_functorch_transforms_active() or any(map(_is_dual, given))
    if not wanted:
        return _product(x, weight, bias, out)  # a function costs as much again as the call
    function = _Compiled if compiling else _Linear
    found: Tensor = function.apply(x, weight, bias, out)  # type: ignore[no-untyped-call]
    return found


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

        x and weight: bfloat16, float16 or float32, the same, or 8-bit types on a GPU. bias: any of
        the floats. scale_a, scale_b: float32, of 8-bit operands (x by token or whole, weight by row
        or whole), None for others. out_dtype: a float; that of x when None (bfloat16 of 8-bit
        operands). Under `torch.autocast` floats take its type first. UsageError names an argument
        that is not allowed, DeviceError 8-bit operands that are not on a GPU.
        """
        self._check(x, weight, bias, scale_a, scale_b, out_dtype)
        if scale_a is not None or scale_b is not None:
            return self._scaled(x, weight, bias, scale_a, scale_b, out_dtype)
        x, weight, bias = autocast(x, weight, bias)  # type: ignore[assignment]
        if x.dtype not in FLOATS:
            raise UsageError(
                f"{_NAME}: x is {x.dtype} without scales; allowed: float16, bfloat16, float32, "
                "or an 8-bit type with scale_a and scale_b"
            )
        if x.dtype != weight.dtype:
            raise UsageError(f"{_NAME}: x is {x.dtype}, weight {weight.dtype}; they must agree")
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        out = _linear(rows, weight, bias, out_dtype)
        return out.reshape(*x.shape[:-1], weight.shape[0])

    __call__ = mm

    @staticmethod
    def _check(
        x: Tensor, weight: Tensor, bias: Tensor | None, scale_a: Tensor | None,
        scale_b: Tensor | None, out_dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        optional = {"bias": bias, "scale_a": scale_a, "scale_b": scale_b}
        for name, tensor in (("x", x), ("weight", weight)):
            if tensor is None:
                raise UsageError(f"{_NAME}: {name} is a NoneType; allowed: a tensor")
        given_tensors(_NAME, {"x": x, "weight": weight, **optional}, optional)
        if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
            raise UsageError(
                f"{_NAME}: x is {list(x.shape)} and weight {list(weight.shape)}; allowed: "
                "x [..., K] with weight [N, K]"
            )
        if bias is not None:
            if tuple(bias.shape) != (weight.shape[0],):
                raise UsageError(
                    f"{_NAME}: bias is {list(bias.shape)}; allowed: [{weight.shape[0]}]"
                )
            one_of(_NAME, "bias's dtype", bias.dtype, FLOATS)
        if out_dtype is not None:
            one_of(_NAME, "out_dtype", out_dtype, FLOATS)

    @staticmethod
    def _scaled(
        x: Tensor, weight: Tensor, bias: Tensor | None, scale_a: Tensor | None,
        scale_b: Tensor | None, out_dtype: torch.dtype | None,
    ) -> Tensor:  # fmt: skip
        if scale_a is None or scale_b is None:
            missing = "scale_a" if scale_a is None else "scale_b"
            raise UsageError(
                f"{_NAME}: {missing} is missing; 8-bit operands need scale_a and scale_b"
            )
        if x.dtype not in (torch.int8, *FLOATS8):
            raise UsageError(
                f"{_NAME}: x is {x.dtype} with scales; allowed: int8, "
                + ", ".join(str(dtype) for dtype in FLOATS8)
            )
        if x.dtype != weight.dtype:
            raise UsageError(f"{_NAME}: x is {x.dtype}, weight {weight.dtype}; they must agree")
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        for name, scale, count in (
            ("scale_a", scale_a, rows.shape[0]), ("scale_b", scale_b, weight.shape[0]),
        ):  # fmt: skip
            if scale.dtype != torch.float32 or scale.numel() not in (1, count):
                raise UsageError(
                    f"{_NAME}: {name} is {scale.dtype} {list(scale.shape)}; allowed: float32 with "
                    f"one element or {count}"
                )
        if x.device.type == "cpu":
            raise DeviceError(
                f"{_NAME}: x is {x.dtype} on the CPU; 8-bit operands are multiplied on a GPU",
                hint="On the CPU, x and weight can be float16, bfloat16 or float32.",
            )
        run = torch.ops.pumice.gemm_int8 if x.dtype == torch.int8 else torch.ops.pumice.gemm_fp8
        out: Tensor = run(rows, weight, scale_a, scale_b, bias, out_dtype or torch.bfloat16)
        return out.reshape(*x.shape[:-1], weight.shape[0])


tgemm = TunedGemm()
