"""Layers over the operators. On the CPU, dense products go to the compiler's kernels and the rest
to PyTorch's own functions; `explain` of a layer's tensors says which kernel a GPU takes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pumice.torch.gemm import tgemm


class Linear(nn.Module):
    """y = x·weightᵀ + bias; weight [N, K]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = _parameter(weight)
        self.bias = None if bias is None else _parameter(bias)
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        return tgemm.mm(x, self.weight, self.bias)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) · weight over the last axis."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = _parameter(weight)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu":
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        rows = x.reshape(-1, x.shape[-1])
        out: Tensor = torch.ops.pumice.rms_norm(rows, self.weight, self.eps)
        return out.reshape(x.shape)


class GatedMLP(nn.Module):
    """down(silu(gate(x)) · up(x)), gate and up as one product."""

    def __init__(self, gate: Tensor, up: Tensor, down: Tensor, down_bias: Tensor | None) -> None:
        super().__init__()
        self.gate_up = _parameter(torch.cat([gate.detach(), up.detach()]))
        self.down = _parameter(down)
        self.down_bias = None if down_bias is None else _parameter(down_bias)

    def forward(self, x: Tensor) -> Tensor:
        both = tgemm.mm(x, self.gate_up)
        if both.device.type == "cpu":
            gate, up = both.chunk(2, -1)
            middle = F.silu(gate) * up
        else:
            rows = both.reshape(-1, both.shape[-1])
            middle = torch.ops.pumice.activation_mul(rows, "silu")
            middle = middle.reshape(*both.shape[:-1], middle.shape[-1])
        return tgemm.mm(middle, self.down, self.down_bias)


class QuantLinear(nn.Module):
    """y = x·dequantize(w)ᵀ + bias with 4-bit weights in `operators/gemm_w4`'s layout, on a GPU."""

    def __init__(
        self, w: Tensor, scales: Tensor, zeros: Tensor | None = None, bias: Tensor | None = None,
        group: int = 32, zero: int = 7, packing: str = "rows",
    ) -> None:  # fmt: skip
        super().__init__()
        self.register_buffer("w", w)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", zeros)
        self.register_buffer("bias", bias)
        self.group, self.zero, self.packing = group, zero, packing

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        out: Tensor = torch.ops.pumice.gemm_w4(
            rows, self.w, self.scales, self.zeros, self.bias, self.group, self.zero, self.packing
        )
        return out.reshape(*x.shape[:-1], out.shape[-1])

    @staticmethod
    def from_linear(layer: nn.Linear, group: int = 32, packing: str | None = None) -> QuantLinear:
        """Quantizes a layer's weight as q4f16_1 does: codes 0 … 14 around 7, float16 scales.

        packing: "rows" for one token at a time, "blocks" for several; None: what is best for the
        layer's device.
        """
        from pumice.operators.gemm_w4.layout import best_packing, pack

        weight = layer.weight.detach().float().cpu()
        n, k = weight.shape
        groups = weight.view(n, k // group, group)
        scales = (groups.abs().amax(-1) / 7).half()
        steps = scales.float().clamp(min=1e-12)[..., None]
        codes = (groups / steps).round().clamp(-7, 7).add(7).to(torch.uint8)
        if packing is None:
            packing = best_packing(k, "rocm" if torch.version.hip is not None else "cuda")
        words = torch.from_numpy(pack(codes.view(n, k).numpy(), packing))
        device = layer.weight.device
        bias = None if layer.bias is None else layer.bias.detach()
        return QuantLinear(words.to(device), scales.to(device), None, bias, group, 7, packing)


def _parameter(tensor: Tensor) -> nn.Parameter:
    return tensor if isinstance(tensor, nn.Parameter) else nn.Parameter(tensor, requires_grad=False)
