"""Swaps the layers of a Transformers model for ours, and says what it swapped and what not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pumice.torch import modules


@dataclass
class Report:
    """swapped: class of layer → how many were replaced. kept: why a layer was not, by its path."""

    swapped: dict[str, int] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{count} × {name}" for name, count in sorted(self.swapped.items())]
        reasons: dict[str, int] = {}
        for reason in self.kept.values():
            reasons[reason] = reasons.get(reason, 0) + 1
        kept = [f"{count} kept: {reason}" for reason, count in sorted(reasons.items())]
        return "; ".join(["swapped " + (", ".join(lines) or "nothing"), *kept])


def _linear(layer: nn.Linear) -> nn.Module | str:
    if layer.weight.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"weights of {layer.weight.dtype}"
    return modules.Linear(layer.weight, layer.bias)


def _rms_norm(layer: nn.Module) -> nn.Module | str:
    weight = getattr(layer, "weight", None)
    eps = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    if not isinstance(weight, Tensor) or not isinstance(eps, float):
        return f"{type(layer).__name__} without weight and eps"
    if "gemma" in type(layer).__name__.lower():
        return "Gemma's norm multiplies by 1 + weight in float32"
    return modules.RMSNorm(weight, eps)


def _gated(layer: nn.Module) -> nn.Module | str:
    parts = [getattr(layer, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(isinstance(part, nn.Linear) for part in parts):
        return "a feed-forward block of another form"
    gate, up, down = parts
    assert isinstance(gate, nn.Linear) and isinstance(up, nn.Linear) and isinstance(down, nn.Linear)
    if any(part.bias is not None for part in (gate, up)):
        return "a gated block with biases"
    name = type(getattr(layer, "act_fn", None)).__name__.lower()
    if "silu" not in name and "swish" not in name:
        return f"activation {name or 'unknown'}"
    return modules.GatedMLP(gate.weight, up.weight, down.weight, down.bias)


def _kind(layer: nn.Module) -> Callable[[Any], nn.Module | str] | None:
    name = type(layer).__name__
    if name.endswith("RMSNorm"):
        return _rms_norm
    if hasattr(layer, "gate_proj") and hasattr(layer, "down_proj") and hasattr(layer, "act_fn"):
        return _gated
    if type(layer) is nn.Linear:
        return _linear
    return None


def accelerate(model: nn.Module) -> Report:
    """Replaces linear layers, RMS norms and gated feed-forward blocks in place; they share the
    model's own weights (but a gate·up pair, which is joined). For inference: gated blocks and norms
    give no gradients.

    Attention goes through `torch.nn.functional` in Transformers and stays as it is.
    """
    report = Report()
    _swap(model, "", report)
    return report


def _swap(parent: nn.Module, path: str, report: Report) -> None:
    for name, child in list(parent.named_children()):
        where = f"{path}.{name}" if path else name
        make = _kind(child)
        made: nn.Module | str | None = None if make is None else make(child)
        if isinstance(made, nn.Module):
            setattr(parent, name, made)
            kind = type(child).__name__
            report.swapped[kind] = report.swapped.get(kind, 0) + 1
            continue
        if made is not None:
            report.kept[where] = made
        _swap(child, where, report)
