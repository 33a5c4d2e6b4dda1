"""The integer form of an activation, in NumPy: what references produce and tests check.

A code c = round-half-even(x / scale) is kept in one int8 plane, or in two: c = 128·high + low with
|high| ≤ 127 and −64 ≤ low ≤ 64, which keeps 15 bits and still multiplies as int8.

codes int8[rows, W] in −127 … 127, or with two planes int8[rows, W/32, 2, 32] as [rows, 2W]: 32 high
parts, then 32 low ones
scales float32 = max|x| / LIMIT[planes], 0 for zeros: [rows, W/32] of each group of 32, or with two
planes [rows, 1] of the row: 15 bits leave small groups enough of theirs, and a product is scaled
once a row instead of once a group
sums float32[rows, W/sum_group] = integer sums of the codes c
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

GROUP = 32
LIMIT = {1: 127, 2: 127 * 128}  # planes → the largest code
OUTPUTS = {
    "x_codes": "int8[T, planes·W]",
    "x_scales": "float32[T, W/32], or [T, 1] with two planes",
    "x_sums": "float32[T, W/sum_group]",
}


@dataclass(frozen=True)
class CodeForm:
    """sum_group: codes a sum is over, 32 or 16. planes: int8 planes of a code, 1 or 2."""

    sum_group: int = GROUP
    planes: int = 1

    def __str__(self) -> str:
        return f"{self.sum_group}x{self.planes}"


def code_form(attrs: Mapping[str, Any]) -> CodeForm | None:
    """The form that a call's `quantize`, `sum_group` and `planes` ask for; None for a float
    output."""
    if not attrs.get("quantize"):
        return None
    return required_form(attrs)


def required_form(attrs: Mapping[str, Any]) -> CodeForm:
    """The form that `sum_group` and `planes` ask for where the output is always quantized."""
    return CodeForm(int(attrs.get("sum_group", GROUP)), int(attrs.get("planes", 1)))


def quantize_rows(x: np.ndarray, sum_group: int = GROUP, planes: int = 1) -> dict[str, np.ndarray]:
    """Quantizes float[rows, W], float64 inside."""
    rows, width = x.shape
    groups = x.astype(np.float64).reshape(rows, width // GROUP, GROUP)
    scales = np.abs(groups).max(axis=2, initial=0.0) / LIMIT[planes]
    if planes == 2:
        scales = scales.max(axis=1, initial=0.0, keepdims=True)
    safe = np.where(scales > 0, scales, 1.0)[..., None]
    codes = np.rint(groups / safe).astype(np.int32)
    sums = codes.reshape(rows, width // sum_group, sum_group).sum(axis=2, dtype=np.int64)
    if planes == 1:
        stored = codes.astype(np.int8)
    else:
        high = np.rint(codes / 128).astype(np.int32)
        stored = np.stack([high, codes - 128 * high], axis=2).astype(np.int8)
    return {
        "x_codes": stored.reshape(rows, planes * width),
        "x_scales": scales.astype(np.float32),
        "x_sums": sums.astype(np.float32),
    }


def dequantize_rows(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """codes · scale in float64."""
    (rows, stored), scales = arrays["x_codes"].shape, arrays["x_scales"]
    planes = 1 if stored == scales.shape[1] * GROUP else 2
    groups = stored // (planes * GROUP)
    codes = arrays["x_codes"].astype(np.float64).reshape(rows, groups, planes, GROUP)
    whole = codes[:, :, 0] if planes == 1 else 128 * codes[:, :, 0] + codes[:, :, 1]
    scaled = whole * scales.astype(np.float64)[..., None]
    return scaled.reshape(rows, groups * GROUP)


def output(attrs: Mapping[str, Any], value: np.ndarray) -> dict[str, np.ndarray]:
    """A float result as the call's outputs: {"out"} or the three quantized arrays."""
    form = code_form(attrs)
    if form is not None:
        return quantize_rows(value, form.sum_group, form.planes)
    return {"out": value.astype(np.float32)}
