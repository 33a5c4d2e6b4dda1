"""What a call of an operator comes to, remembered by what its tensors look like: a decode step
makes the same calls over and over, and each would be recognised, checked and chosen for anew."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from pumice.torch.choose import Call

MOST = 8192  # then all are forgotten: prompts of every length leave one each


@dataclass(frozen=True)
class Recipe:
    """made: outputs that a call makes, (name, shape, dtype). names: what it returns. call: the
    bound kernel."""

    made: tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
    names: tuple[str, ...]
    call: Call

    def run(
        self, given: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """On the device that is current. outputs: those that the caller has."""
        device = next(iter(given.values())).device
        tensors = {**given, **outputs}
        for name, shape, dtype in self.made:
            if name not in outputs:
                tensors[name] = torch.empty(shape, dtype=dtype, device=device)
        self.call(tensors)
        return {name: tensors[name] for name in self.names}


_known: dict[Hashable, Recipe] = {}


def signature(
    operator: str,
    given: Mapping[str, torch.Tensor],
    attrs: Mapping[str, Any],
    outputs: Mapping[str, torch.Tensor],
) -> Hashable | None:
    """All that a recipe depends on; None for tensors without places in memory."""
    found: list[Any] = [operator, tuple(attrs.items()), *outputs]
    try:
        for name, tensor in given.items():
            found.append(
                (
                    name, tensor.dtype, tensor.shape, tensor.stride(), tensor.data_ptr() & 15,
                    tensor.device,
                )
            )  # fmt: skip
    except (AttributeError, RuntimeError):
        return None
    return tuple(found)


def recall(key: Hashable) -> Recipe | None:
    """The recipe of a signature, if it was called before."""
    return _known.get(key)


def remember(key: Hashable, recipe: Recipe) -> None:
    """Keeps a recipe; all others go when there are too many."""
    if len(_known) >= MOST:
        _known.clear()
    _known[key] = recipe
