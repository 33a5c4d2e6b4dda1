"""Swaps the layers of a Transformers model for ours, and says what it swapped and what not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from pumice.errors import UsageError
from pumice.torch import modules, probe
from pumice.torch.operators import FLOATS

_OURS = (modules.Linear, modules.RMSNorm, modules.GatedMLP, modules.QuantLinear)


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


def _own_ways(layer: nn.Module) -> str | None:
    """Why a layer does more than its class says: what a user hung onto it would be lost."""
    if "forward" in vars(layer):
        return "its forward was replaced"
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(layer, name, None) for name in hooks):
        return "it has hooks"
    for name, weight in layer.named_parameters(recurse=False):
        if type(weight) not in (nn.Parameter, Tensor):
            return f"its {name} is a {type(weight).__name__}"
        if weight.dtype not in FLOATS:
            return f"weights of {weight.dtype}"
    return None


def _linear(layer: nn.Linear) -> nn.Module | str:
    return modules.Linear(layer.weight, layer.bias)


def _rms_norm(layer: nn.Module) -> nn.Module | str:
    weight = getattr(layer, "weight", None)
    eps = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(eps, float):
        return f"{type(layer).__name__} without weight and eps"
    return probe.rms_norm_fault(layer, eps) or modules.RMSNorm(weight, eps)


def _gated(layer: nn.Module) -> nn.Module | str:
    parts = [getattr(layer, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    if not all(type(part) in (nn.Linear, modules.Linear) for part in parts):
        return "a feed-forward block of another form"
    gate, up, down = (part for part in parts if isinstance(part, nn.Linear))
    for part in (gate, up, down):
        if (fault := _own_ways(part)) is not None:
            return f"a gated block of whose products one is kept: {fault}"
    if any(part.bias is not None for part in (gate, up)):
        return "a gated block with biases"
    if gate.weight.shape != up.weight.shape or down.weight.shape[1] != gate.weight.shape[0]:
        return "a feed-forward block of another form"
    if fault := probe.gated_fault(layer):
        return fault
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
    model's own weights (but a gate·up pair, which is joined), and its state keeps its names. For
    inference: gated blocks and norms give no gradients on a GPU.

    A norm or a block is tried on small random numbers first, and kept where it computes something
    else than ours. Layers with hooks, with a forward of their own (as adapters and offloading put
    there) or with weights of a tensor's subclass are kept. What was swapped before is left alone.
    Attention goes through `torch.nn.functional` in Transformers and stays as it is. UsageError for
    what is no module.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"accelerate: model is a {_name(model)}; allowed: a torch.nn.Module")
    report = Report()
    if not isinstance(model, _OURS) and _kind(model) is not None:
        report.kept["(the model itself)"] = "a layer alone has nothing that it could be swapped in"
        return report
    _swap(model, "", report, {})
    return report


def _name(value: Any) -> str:
    return f"class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _swap(parent: nn.Module, path: str, report: Report, done: dict[nn.Module, nn.Module]) -> None:
    for name, child in list(parent._modules.items()):
        if child is None or isinstance(child, _OURS):
            continue
        where = f"{path}.{name}" if path else name
        if child in done:  # a layer that stands in several places
            setattr(parent, name, done[child])
            continue
        make = _kind(child)
        made: nn.Module | str | None = None
        if make is not None:
            made = _own_ways(child) or make(child)
        if isinstance(made, nn.Module):
            done[child] = made.train(child.training)
            setattr(parent, name, made)
            kind = type(child).__name__
            report.swapped[kind] = report.swapped.get(kind, 0) + 1
            continue
        if made is not None:
            report.kept[where] = made
        _swap(child, where, report, done)
