"""rms_norm: root mean square normalization (Zhang and Sennrich, arXiv:1910.07467), optionally
quantized to int8.

attrs: H (width), eps; quantize (bool) with sum_group 32 or 16 gives the three arrays of
`operators/quantized.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.quantized import output


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x²) + eps) · weight over the last axis, in float64."""
    x = x.astype(np.float64)
    return np.asarray(
        x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight.astype(np.float64)
    )


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    return output(attrs, rms_norm(inputs["x"], inputs["weight"], attrs["eps"]))


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Odd widths, no rows, one row, a row of zeros, large and small values."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for tokens, width in ((5, 123), (0, 64), (1, 1), (1, 576), (3, 7), (33, 576), (2, 4096)):
        for quantize in (False, True):
            if quantize and width % 32:
                continue
            x = rng.standard_normal((tokens, width), dtype=np.float32)
            x *= np.float32(10.0) ** rng.integers(-3, 4, (tokens, 1)).astype(np.float32)
            if tokens > 2:
                x[1] = 0
            weight = rng.standard_normal(width, dtype=np.float32)
            attrs: dict[str, Any] = {"H": width, "eps": 1e-5}
            if quantize:
                attrs |= {
                    "quantize": True,
                    "group": 32,
                    "sum_group": 16 if tokens % 2 else 32,
                    "planes": 1 + tokens % 3 % 2,
                }
            found.append((attrs, {"x": x, "weight": weight}))
    return found


SPEC = OperatorSpec(
    name="rms_norm",
    formula="out[t] = x[t] · rsqrt(mean(x[t]²) + eps) · weight",
    axes={"T": "tokens", "H": "width"},
    inputs={"x": "float32[T, H]", "weight": "float32[H]"},
    outputs={"out": "float32[T, H]"},
    reference=reference,
    tolerance={"float32": 1e-6},
    cases=cases,
    kernels=("pumice.operators.rms_norm.kernel_tir:RmsNorm",),
)
