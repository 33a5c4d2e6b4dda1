"""Formats that are made here from float weights: groups of 32 along K with float16 scales, in MLC-LLM's naming.

q4f16_1 follows MLC-LLM's group quantization: symmetric, scale = max|w| / 7, code = round(w / scale) + 7 in 0 … 14; stored with eight codes
a uint32 along K, the lowest k in the lowest bits.
"""

from __future__ import annotations

import numpy as np

from pumice.quantization.base import AffineWeight

GROUP = 32


def _grouped(weight: np.ndarray) -> np.ndarray:
    n, k = weight.shape
    return weight.astype(np.float32, copy=False).reshape(n, k // GROUP, GROUP)


def _codes(values: np.ndarray, highest: int) -> np.ndarray:
    rounded = np.clip(np.rint(values), 0, highest).astype(np.uint8)
    return rounded.reshape(rounded.shape[0], -1)


def _symmetric(weight: np.ndarray, levels: int, zero: int) -> AffineWeight:
    groups = _grouped(weight)
    scales = (np.abs(groups).max(axis=-1) / levels).astype(np.float16)
    # The code is chosen for the scale that is stored, not for the one before rounding to float16.
    inverse = np.divide(1.0, scales, out=np.zeros(scales.shape, np.float32), where=scales > 0)
    return AffineWeight(_codes(groups * inverse[..., None] + zero, zero + levels), scales, None)


def quantize_q4f16_1(weight: np.ndarray) -> AffineWeight:
    """float32[N, K] → codes 0 … 14, w = scale·(q − 7)."""
    return _symmetric(weight, 7, 7)


def quantize_q8f16(weight: np.ndarray) -> AffineWeight:
    """float32[N, K] → codes 1 … 255, w = scale·(q − 128)."""
    return _symmetric(weight, 127, 128)


def quantize_q4f16_1_min(weight: np.ndarray) -> AffineWeight:
    """float32[N, K] → codes 0 … 15, w = scale·q − min, the range from the group's least to its greatest value."""
    groups = _grouped(weight)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    scales = ((high - low) / 15).astype(np.float16)
    mins = (-low).astype(np.float16)
    inverse = np.divide(1.0, scales, out=np.zeros(scales.shape, np.float32), where=scales > 0)
    codes = _codes((groups + mins.astype(np.float32)[..., None]) * inverse[..., None], 15)
    return AffineWeight(codes, scales, mins)


def to_uint32(codes: np.ndarray) -> np.ndarray:
    """4-bit codes uint8[N, K] → uint32[N, K/8], MLC's storage."""
    nibbles = codes.reshape(codes.shape[0], -1, 2)
    packed = np.ascontiguousarray(nibbles[..., 0] | (nibbles[..., 1] << 4))
    return packed.view("<u4")


def from_uint32(words: np.ndarray) -> np.ndarray:
    """uint32[N, K/8] → 4-bit codes uint8[N, K]."""
    packed = np.ascontiguousarray(words, dtype="<u4").view(np.uint8)
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(words.shape[0], -1)
