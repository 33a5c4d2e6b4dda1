"""Quantized weight formats and the layouts in which kernels read them.

Every affine format reduces to one form, `w[n, k] = scale[n, g]·code[n, k] − min[n, g]` with
`g = k // group`:
- codes are unsigned, `bits` wide (as stored in the file: 2 to 8), held as 4-bit or 8-bit codes by
  kernels (`code_bits`);
- a symmetric format has no mins but one `zero` for all: `min = zero·scale` (Q4_0: 8, Q8_0: 128
  after its signed codes are shifted to unsigned).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class AffineWeight:
    """A weight in the canonical form, row-major and unpacked.

    codes uint8[N, K]; scales float16|float32[N, K/group]; mins like scales, or None when
    min = zero·scale.
    `dequantize(AffineWeight)` equals the file's own dequantization exactly in float32 arithmetic.
    """

    codes: np.ndarray
    scales: np.ndarray
    mins: np.ndarray | None


@dataclass(frozen=True)
class QuantFormat:
    """A weight format. `affine` False with bits 16 or 32 means dense float (f16, bf16, f32)."""

    name: str  # "q4f16_1" "q4_1" "q6_k" "q8_0" "f16" "bf16" "f32"
    bits: int  # bits of a stored code: 2..8, or 16/32 when dense
    group: int  # weights that share a scale, along K; 1 when dense
    affine: bool = True
    has_min: bool = False
    zero: int = 0  # for a symmetric format
    scale_dtype: str = (
        "float16"  # float32 where a file's scale is a product that float16 cannot hold exactly
    )
    dense_dtype: str | None = None  # dtype of a dense format
    gguf_type: int | None = None  # GGML's number for the type, when the format comes from GGUF
    quantize: Callable[[np.ndarray], AffineWeight] | None = (
        None  # float32[N, K] → affine, for formats made here
    )

    @property
    def code_bits(self) -> int:
        """Bits of a code as kernels hold it: 4 or 8; 16/32 when dense."""
        if not self.affine:
            return self.bits
        return 4 if self.bits <= 4 else 8

    @property
    def code_max(self) -> int:
        """The largest code, which bounds how many products fit a 16-bit accumulator."""
        return (1 << self.bits) - 1

    def bytes_per_weight(self) -> float:
        """Bytes that a kernel reads for one weight, scales and mins included."""
        if not self.affine:
            return self.bits / 8
        scale = 2 if self.scale_dtype == "float16" else 4
        return self.code_bits / 8 + scale * (2 if self.has_min else 1) / self.group


@dataclass(frozen=True)
class PackedLayout:
    """How a target's kernels hold a weight in memory: rows interleaved by `rows`.

    One vector register reads 4 consecutive k of `rows` rows (one 32-bit lane a row), as dot-product
    instructions want.

    With R = rows, G = group, rows padded with zero codes and zero scales to a multiple of R:
    8-bit  codes uint8[N/R, K/4, R, 4]         element (n, k) at [n//R, k//4, n%R, k%4]
    4-bit  codes uint8[N/R, K/G, G/8, R, 4]    byte [·, g, j, r, b]:
               low nibble k = g·G + 4j + b, high nibble k = g·G + G/2 + 4j + b
    scales (and mins)  [N/R, K/G, R]
    dense  data [N/R, K, R]
    """

    rows: int

    def padded(self, n: int) -> int:
        return -(-n // self.rows) * self.rows
