"""gather_rows: the rows of x that are asked for, in that order. attrs: H (width)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.base import OperatorSpec


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    return {"out": inputs["x"][inputs["rows"]]}


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """No rows asked for, one, a row twice, not in order."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for tokens, width, rows in ((5, 123, 0), (1, 1, 1), (7, 123, 9), (33, 576, 3)):
        x = rng.standard_normal((tokens, width), dtype=np.float32)
        chosen = rng.integers(0, tokens, rows, dtype=np.int32)
        found.append(({"H": width}, {"x": x, "rows": chosen}))
    return found


SPEC = OperatorSpec(
    name="gather_rows",
    formula="out[r] = x[rows[r]]",
    axes={"T": "tokens", "R": "rows asked for", "H": "width"},
    inputs={"x": "float32[T, H]", "rows": "int32[R]"},
    outputs={"out": "float32[R, H]"},
    reference=reference,
    tolerance={"float32": 0.0},
    cases=cases,
    kernels=("pumice.operators.gather_rows.kernel_tir:GatherRows",),
)
