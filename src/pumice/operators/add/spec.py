"""add: a + b, the residual sum where no fusion took it. attrs: H (width)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.base import OperatorSpec


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    return {"out": inputs["a"] + inputs["b"]}


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """No rows, one row, odd widths."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for tokens, width in ((5, 123), (0, 64), (1, 1), (33, 576)):
        a, b = (rng.standard_normal((tokens, width), dtype=np.float32) for _ in range(2))
        found.append(({"H": width}, {"a": a, "b": b}))
    return found


SPEC = OperatorSpec(
    name="add",
    formula="out = a + b",
    axes={"T": "tokens", "H": "width"},
    inputs={"a": "float32[T, H]", "b": "float32[T, H]"},
    outputs={"out": "float32[T, H]"},
    reference=reference,
    tolerance={"float32": 0.0},
    cases=cases,
    kernels=("pumice.operators.add.kernel_tir:Add",),
)
