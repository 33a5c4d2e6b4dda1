"""Does a layer compute what ours would? Asked by small random numbers, not by its name: families of
models share names and differ in a detail (1 + weight, factors, an activation that is cut off).

A copy with small weights on the CPU is tried, so that weights without data, on whichever device,
are no obstacle.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TOLERANCE = 1e-4  # of float32, which a layer may keep in 16 bits nowhere


def _same(got: object, expected: Tensor) -> bool:
    return (
        isinstance(got, Tensor)
        and got.shape == expected.shape
        and bool(
            ((got.float() - expected).norm(dim=-1) <= _TOLERANCE * expected.norm(dim=-1)).all()
        )
    )


def _tried(layer: nn.Module, x: Tensor) -> object:
    """Its result, or the error."""
    with torch.no_grad():
        try:
            return layer(x)
        except Exception as error:  # whatever a model's code may raise
            return error


def rms_norm_fault(layer: nn.Module, eps: float) -> str | None:
    """Why a norm is not x / sqrt(mean(x²) + eps) · weight, or None."""
    random = torch.Generator().manual_seed(0)
    small = copy.deepcopy(layer).to_empty(device="cpu").float()
    with torch.no_grad():
        for each in small.parameters():
            each.copy_(torch.rand(each.shape, generator=random) + 0.5)
    weight = small.weight
    assert isinstance(weight, Tensor)
    x = torch.randn(3, weight.shape[0], generator=random)
    x[1] *= 30
    x[2] *= eps**0.5  # a row in which eps counts
    got = _tried(small, x)
    scaled = F.rms_norm(x, weight.shape, None, eps)
    if _same(got, scaled * weight.detach()):
        return None
    if _same(got, scaled * (1 + weight.detach())):
        return f"{type(layer).__name__} multiplies by 1 + weight"
    return f"{type(layer).__name__} computes something else{_reason(got)}"


def gated_fault(layer: nn.Module) -> str | None:
    """Why a block is not down(silu(gate(x)) · up(x)), or None. It has these three products."""
    random = torch.Generator().manual_seed(0)
    small = copy.copy(layer)
    parts: dict[str, nn.Linear] = {}
    for name, sizes in (("gate_proj", (8, 6)), ("up_proj", (8, 6)), ("down_proj", (6, 8))):
        bias = getattr(getattr(layer, name), "bias", None) is not None
        parts[name] = nn.Linear(*sizes, bias=bias)
        with torch.no_grad():
            for weight in parts[name].parameters():
                weight.copy_(torch.randn(weight.shape, generator=random))
    vars(small)["_modules"] = {**layer._modules, **parts}  # the copy shares the dict itself
    x = 4 * torch.randn(1, 5, 8, generator=random)
    got = _tried(small, x)

    def with_activation(act: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.no_grad():
            made: Tensor = parts["down_proj"](act(parts["gate_proj"](x)) * parts["up_proj"](x))
        return made

    if _same(got, with_activation(F.silu)):
        return None
    act = getattr(layer, "act_fn", None)
    if callable(act) and _same(got, with_activation(act)):
        return f"activation {type(act).__name__.lower()}"
    return f"{type(layer).__name__} computes something else{_reason(got)}"


def _reason(got: object) -> str:
    return f" ({type(got).__name__} on a small input)" if isinstance(got, Exception) else ""
