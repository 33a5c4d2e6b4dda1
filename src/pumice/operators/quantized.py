"""The int8 form of an activation, in NumPy: what references produce and tests check.

codes int8[rows, W] = round-half-even(x / scale), −127 … 127
scales float32[rows, W/32] = max|x| / 127 of each group of 32 (0 for a group of zeros)
sums float32[rows, W/sum_group] = integer sums of the codes
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

GROUP = 32
OUTPUTS = {
    "x_codes": "int8[T, W]",
    "x_scales": "float32[T, W/32]",
    "x_sums": "float32[T, W/sum_group]",
}


def quantize_rows(x: np.ndarray, sum_group: int = GROUP) -> dict[str, np.ndarray]:
    """Quantizes float[rows, W], float64 inside."""
    rows, width = x.shape
    groups = x.astype(np.float64).reshape(rows, width // GROUP, GROUP)
    scales = np.abs(groups).max(axis=2, initial=0.0) / 127.0
    safe = np.where(scales > 0, scales, 1.0)[..., None]
    codes = np.rint(groups / safe).astype(np.int8)
    sums = codes.reshape(rows, width // sum_group, sum_group).sum(axis=2, dtype=np.int64)
    return {
        "x_codes": codes.reshape(rows, width),
        "x_scales": scales.astype(np.float32),
        "x_sums": sums.astype(np.float32),
    }


def dequantize_rows(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """codes · scale in float64."""
    scales = np.repeat(arrays["x_scales"].astype(np.float64), GROUP, axis=1)
    return arrays["x_codes"].astype(np.float64) * scales


def output(attrs: Mapping[str, Any], value: np.ndarray) -> dict[str, np.ndarray]:
    """A float result as the call's outputs: {"out"} or the three quantized arrays."""
    if attrs.get("quantize"):
        return quantize_rows(value, int(attrs.get("sum_group", GROUP)))
    return {"out": value.astype(np.float32)}
