"""Formats made here from float weights: groups of 32 along K with float16 scales, MLC-LLM's names.

q4f16_1 is MLC-LLM's group quantization (mlc_llm/quantization/group_quantization.py): symmetric,
scale = max|w| / 7, code = round(w / scale) + 7 in 0 … 14, stored with eight codes a uint32 along K,
the lowest k in the lowest bits. MLC computes in the model's type; here the scale is made in
float32, rounded to float16, and the codes are chosen for the rounded scale.
"""

from __future__ import annotations

import numpy as np

from pumice.errors import ModelFileError
from pumice.quantization.base import AffineWeight

GROUP = 32


def _grouped(weight: np.ndarray) -> np.ndarray:
    n, k = weight.shape
    groups: np.ndarray = weight.astype(np.float32, copy=False).reshape(n, k // GROUP, GROUP)
    return groups


def _float16(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        stored = values.astype(np.float16)
    if not np.isfinite(stored).all():
        raise ModelFileError(
            "the weights hold NaN, infinity, or values beyond what a float16 scale can reach"
        )
    return stored


def _inverse(scales: np.ndarray) -> np.ndarray:
    """1 / scale (0 for 0) in float32: float16 cannot hold it for a scale below 1.5e-5."""
    wide = scales.astype(np.float32)
    inverse: np.ndarray = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
    return inverse


def _codes(values: np.ndarray, lowest: int, highest: int) -> np.ndarray:
    rounded: np.ndarray = np.clip(np.rint(values), lowest, highest).astype(np.uint8)
    n, groups, width = values.shape
    return rounded.reshape(n, groups * width)


def _symmetric(weight: np.ndarray, levels: int, zero: int) -> AffineWeight:
    groups = _grouped(weight)
    scales = _float16(np.abs(groups).max(axis=-1) / levels)
    steps = groups * _inverse(scales)[..., None] + zero
    return AffineWeight(_codes(steps, zero - levels, zero + levels), scales, None)


def quantize_q4f16_1(weight: np.ndarray) -> AffineWeight:
    """float32[N, K] → codes 0 … 14, w = scale·(q − 7)."""
    return _symmetric(weight, 7, 7)


def quantize_q8f16(weight: np.ndarray) -> AffineWeight:
    """float32[N, K] → codes 1 … 255, w = scale·(q − 128)."""
    return _symmetric(weight, 127, 128)


def quantize_q4f16_1_min(weight: np.ndarray) -> AffineWeight:
    """float32[N, K] → codes 0 … 15, w = scale·q − min, from the group's least to its greatest."""
    groups = _grouped(weight)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    scales, mins = _float16((high - low) / 15), _float16(-low)
    steps = (groups + mins.astype(np.float32)[..., None]) * _inverse(scales)[..., None]
    return AffineWeight(_codes(steps, 0, 15), scales, mins)


def pack_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes uint8[N, K] of 4 or 8 bits → uint32[N, K·bits/32], the lowest k in the lowest bits."""
    if bits == 4:
        codes = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return np.ascontiguousarray(codes).view("<u4")


def unpack_words(words: np.ndarray, bits: int) -> np.ndarray:
    """uint32[N, W] → codes uint8[N, W·32/bits], a copy."""
    packed = np.array(words, dtype="<u4", order="C").view(np.uint8)
    if bits == 8:
        return packed
    n, k = packed.shape
    codes = np.empty((n, k, 2), np.uint8)
    np.bitwise_and(packed, 15, out=codes[..., 0])
    np.right_shift(packed, 4, out=codes[..., 1])
    return codes.reshape(n, 2 * k)
