"""What passes may know besides the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.compiler.graph import Graph
from pumice.quantization.base import QuantFormat

ACTIVATION_GROUP = 32  # values of an activation row that share a scale


@dataclass(frozen=True)
class PassContext:
    """formats: parameter → its weight's format. activations: "int8", "int16" or "float32" for
    affine weights' matmuls.

    notes collects, for people, why a fusion did not apply.
    """

    formats: Mapping[str, QuantFormat]
    activations: str = "int16"
    notes: list[str] = field(default_factory=list)

    def format_of(self, var: Any) -> QuantFormat:
        return self.formats[var.name]

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


Pass = Callable[[Graph, PassContext], Graph]
