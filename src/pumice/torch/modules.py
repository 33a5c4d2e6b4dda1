"""Layers over the operators. On the CPU, dense products go to the compiler's kernels and the rest
to PyTorch's own functions; `explain` of a layer's tensors says which kernel a GPU takes.

UsageError for weights that do not fit each other, when a layer is made, and for an input that does
not fit them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pumice.errors import UsageError
from pumice.torch.gemm import autocast, tgemm
from pumice.torch.operators import FLOATS


def _shape(name: str, argument: str, tensor: Any, *allowed: int | str) -> None:
    """UsageError unless a tensor has these sizes; a word stands for any size."""
    sizes = list(tensor.shape) if isinstance(tensor, Tensor) else None
    if sizes is None or len(sizes) != len(allowed) or any(
        isinstance(want, int) and size != want for size, want in zip(sizes, allowed, strict=True)
    ):  # fmt: skip
        got = type(tensor).__name__ if sizes is None else sizes
        want = f"[{', '.join(map(str, allowed))}]"
        raise UsageError(f"{name}: {argument} is {got}; allowed: a tensor {want}")


def _rows(name: str, x: Tensor, width: int) -> Tensor:
    """x[…, width] as [rows, width]."""
    if x.dim() < 1 or x.shape[-1] != width:
        raise UsageError(f"{name}: x is {list(x.shape)}; allowed: [..., {width}]")
    return x.reshape(math.prod(x.shape[:-1]), width)


class Linear(nn.Linear):
    """y = x·weightᵀ + bias; weight [N, K]. To others (adapters, resized heads) it is PyTorch's."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        nn.Module.__init__(self)
        _shape("Linear", "weight", weight, "N", "K")
        if bias is not None:
            _shape("Linear", "bias", bias, weight.shape[0])
        self.weight = _parameter(weight)
        self.register_parameter("bias", None if bias is None else _parameter(bias))
        self.out_features, self.in_features = weight.shape

    def forward(self, input: Tensor) -> Tensor:
        return tgemm.mm(input, self.weight, self.bias)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight over the last axis; weight [H]."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        _shape("RMSNorm", "weight", weight, "H")
        self.weight = _parameter(weight)
        self.eps = eps

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"

    def forward(self, x: Tensor) -> Tensor:
        rows = _rows("RMSNorm", x, self.weight.shape[0])
        if x.device != self.weight.device:
            raise UsageError(f"RMSNorm: x is on {x.device}, weight on {self.weight.device}")
        if x.device.type == "cpu":
            wide = torch.promote_types(x.dtype, self.weight.dtype)  # both in one, then x's
            weight = self.weight.to(wide)
            return F.rms_norm(x.to(wide), weight.shape, weight, self.eps).to(x.dtype)
        out: Tensor = torch.ops.pumice.rms_norm(rows, self.weight, self.eps)
        return out.reshape(x.shape)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x)), gate [F, K] and up [F, K] as one product; down [N, F].

    Its state has the names that Transformers' blocks have (gate_proj.weight, up_proj.weight,
    down_proj.weight), so that a model's checkpoints stay what they were.
    """

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor, down_bias: Tensor | None) -> None:
        super().__init__()
        _shape("GatedMLP", "gate", gate, "F", "K")
        _shape("GatedMLP", "up", up, *gate.shape)
        _shape("GatedMLP", "down", down, "N", gate.shape[0])
        if down_bias is not None:
            _shape("GatedMLP", "down_bias", down_bias, down.shape[0])
        joined = torch.cat([gate.detach(), up.detach()])
        self.gate_up = nn.Parameter(joined, requires_grad=gate.requires_grad or up.requires_grad)
        self.down = _parameter(down)
        self.down_bias = None if down_bias is None else _parameter(down_bias)

    def extra_repr(self) -> str:
        return f"{self.gate_up.shape[1]}, {self.down.shape[1]}, {self.down.shape[0]}"

    def forward(self, x: Tensor) -> Tensor:
        both = tgemm.mm(x, self.gate_up)
        if both.device.type == "cpu":
            gate, up = both.chunk(2, -1)
            middle = F.silu(gate) * up
        else:
            rows = both.reshape(math.prod(both.shape[:-1]), both.shape[-1])
            middle = torch.ops.pumice.activation_mul(rows, "silu")
            middle = middle.reshape(*both.shape[:-1], middle.shape[-1])
        return tgemm.mm(middle, self.down, self.down_bias)

    def _names(self, prefix: str) -> dict[str, str]:
        found = {"down": "down_proj.weight", "down_bias": "down_proj.bias"}
        return {prefix + ours: prefix + theirs for ours, theirs in found.items()}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        own: dict[str, Any] = {}
        super()._save_to_state_dict(own, prefix, keep_vars)
        gate, up = own.pop(prefix + "gate_up").chunk(2)
        destination[prefix + "gate_proj.weight"] = gate
        destination[prefix + "up_proj.weight"] = up
        names = self._names(prefix)
        for name, value in own.items():
            destination[names.get(name, name)] = value

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        pair = [f"{prefix}{name}_proj.weight" for name in ("gate", "up")]
        if all(name in state_dict for name in pair):
            state_dict[prefix + "gate_up"] = torch.cat([state_dict.pop(name) for name in pair])
        for ours, theirs in self._names(prefix).items():
            if theirs in state_dict:
                state_dict[ours] = state_dict.pop(theirs)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class QuantLinear(nn.Module):
    """y = x·dequantize(w)ᵀ + bias with 4-bit weights in `operators/gemm_w4`'s layout, on a GPU.

    w: int32[N, K/8]. scales: float16[N, K/group], which stay float16 when the module is given
    another type. zeros: uint8[N, K/group], or `zero` for all. bias: [N]. group: a multiple of 32.
    """

    def __init__(
        self, w: Tensor, scales: Tensor, zeros: Tensor | None = None, bias: Tensor | None = None,
        group: int = 32, zero: int = 7, packing: str = "rows",
    ) -> None:  # fmt: skip
        super().__init__()
        self.w: Tensor
        self.scales: Tensor
        _shape("QuantLinear", "w", w, "N", "K/8")
        _group(group, w.shape[1] * 8)
        if packing not in ("rows", "blocks"):
            raise UsageError(f"QuantLinear: packing is {packing!r}; allowed: 'rows', 'blocks'")
        groups = (w.shape[0], w.shape[1] * 8 // group)
        given = {"w": (w, torch.int32), "scales": (scales, torch.float16)}
        _shape("QuantLinear", "scales", scales, *groups)
        if zeros is not None:
            _shape("QuantLinear", "zeros", zeros, *groups)
            given["zeros"] = (zeros, torch.uint8)
        if bias is not None:
            _shape("QuantLinear", "bias", bias, w.shape[0])
        for name, (tensor, dtype) in given.items():
            if tensor.dtype != dtype:
                raise UsageError(f"QuantLinear: {name} is {tensor.dtype}; allowed: {dtype}")
        self.register_buffer("w", w)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", zeros)
        self.register_buffer("bias", bias)
        self.group, self.zero, self.packing = group, zero, packing

    def extra_repr(self) -> str:
        n, words = self.w.shape
        return f"{words * 8}, {n}, group={self.group}, packing={self.packing!r}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantLinear:
        def kept(t: Tensor) -> Tensor:
            """To other places, but not to other types: kernels read float16."""
            return fn(t.view(torch.int16)).view(torch.float16) if t is self.scales else fn(t)

        super()._apply(kept, recurse)  # type: ignore[no-untyped-call]
        return self

    def forward(self, x: Tensor) -> Tensor:
        (x,) = autocast(x)  # type: ignore[assignment]
        rows = _rows("QuantLinear", x, self.w.shape[1] * 8)
        out: Tensor = torch.ops.pumice.gemm_w4(
            rows, self.w, self.scales, self.zeros, self.bias, self.group, self.zero, self.packing
        )
        return out.reshape(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def from_linear(layer: nn.Linear, group: int = 32, packing: str | None = None) -> QuantLinear:
        """Quantizes a layer's weight as q4f16_1 does: codes 0 … 14 around 7, float16 scales.

        packing: "rows" for one token at a time, "blocks" for several; None: what is best for the
        layer's device. UsageError for weights that are no numbers, or beyond float16's scales.
        """
        from pumice.operators.gemm_w4.layout import best_packing, pack

        weight = getattr(layer, "weight", None)
        _shape("QuantLinear.from_linear", "layer.weight", weight, "N", "K")
        assert isinstance(weight, Tensor)
        if weight.dtype not in FLOATS or weight.is_meta:
            raise UsageError(
                f"QuantLinear.from_linear: layer.weight is {weight.dtype} on {weight.device}; "
                f"allowed: {', '.join(map(str, FLOATS))} with values"
            )
        values = weight.detach().float().cpu()
        n, k = values.shape
        _group(group, k)
        groups = values.view(n, k // group, group)
        scales = (groups.abs().amax(-1) / 7).half()
        if not scales.isfinite().all():
            wrong = values[~values.isfinite()]
            worst = float(wrong[0] if wrong.numel() else values.abs().max())
            raise UsageError(
                f"QuantLinear.from_linear: layer.weight holds {worst}; allowed: numbers up to "
                f"{7 * 65504:,}, whose scales float16 holds"
            )
        steps = scales.float().clamp(min=1e-12)[..., None]
        codes = (groups / steps).round().clamp(-7, 7).add(7).to(torch.uint8)
        if packing is None:
            packing = best_packing(k, "rocm" if torch.version.hip is not None else "cuda")
        if packing not in ("rows", "blocks") or (packing == "blocks" and k % 128):
            raise UsageError(
                f"QuantLinear.from_linear: packing is {packing!r} with K = {k}; allowed: 'rows', "
                "or 'blocks' where K is a multiple of 128"
            )
        words = torch.from_numpy(pack(codes.view(n, k).numpy(), packing))
        device = weight.device
        bias = None if layer.bias is None else layer.bias.detach()
        return QuantLinear(words.to(device), scales.to(device), None, bias, group, 7, packing)


def _group(group: Any, k: int) -> None:
    if not isinstance(group, int) or group < 32 or group % 32 or k % group:
        raise UsageError(
            f"QuantLinear: group is {group!r} with K = {k}; allowed: a multiple of 32 that "
            "divides K"
        )


def _parameter(tensor: Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)
