"""quantize: an activation to int8 codes in groups of 32 (the form is in `operators/quantized.py`).

attrs: H (width, a multiple of 32), sum_group 32 or 16, planes 1 or 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.quantized import OUTPUTS, quantize_rows


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    return quantize_rows(inputs["x"], int(attrs.get("sum_group", 32)), int(attrs.get("planes", 1)))


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """No rows, one row, groups of zeros, values near the ends of float32's range, exact ties."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for tokens, width, sum_group in ((0, 32, 32), (1, 32, 16), (5, 576, 32), (33, 160, 16)):
        x = rng.standard_normal((tokens, width), dtype=np.float32)
        if tokens > 3:
            x[0, :32] = 0
            x[1] *= np.float32(1e30)
            x[2] *= np.float32(1e-25)
            x[3, :32] = np.arange(32) - 15.5
            x[3, 0] = 127.0  # scale 1: the others are ties
        attrs = {"H": width, "group": 32, "sum_group": sum_group, "planes": 1 + tokens % 2}
        found.append((attrs, {"x": x}))
    return found


SPEC = OperatorSpec(
    name="quantize",
    formula="x_codes = round(x / s), s = max|x| / 127 of each 32 (two planes: / 16256 of the row)",
    axes={"T": "tokens", "W": "width"},
    inputs={"x": "float32[T, W]"},
    outputs=OUTPUTS,
    reference=reference,
    tolerance={"float32": 1e-6},
    cases=cases,
    kernels=("pumice.operators.quantize.kernel_tir:Quantize",),
)
