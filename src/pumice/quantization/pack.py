"""From the canonical form to the packed layout that kernels read (see `PackedLayout`), and back.

Work goes by runs of rows, so that packing a large weight needs little memory beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.quantization.base import AffineWeight, PackedLayout, QuantFormat

_RUN_BYTES = 1 << 23


def dequantize(weight: AffineWeight, fmt: QuantFormat) -> np.ndarray:
    """float32[N, K] of a weight in canonical form."""
    n, k = weight.codes.shape
    codes = weight.codes.reshape(n, k // fmt.group, fmt.group).astype(np.float32)
    scales = weight.scales.astype(np.float32)[..., None]
    out: np.ndarray
    if weight.mins is None:
        out = scales * (codes - np.float32(fmt.zero))
    else:
        out = scales * codes - weight.mins.astype(np.float32)[..., None]
    return out.reshape(n, k)


def concatenate(weights: Sequence[AffineWeight]) -> AffineWeight:
    """Weights of one format and K, stacked along N."""
    if len(weights) == 1:
        return weights[0]
    mins = [w.mins for w in weights if w.mins is not None]
    return AffineWeight(
        np.concatenate([w.codes for w in weights]),
        np.concatenate([w.scales for w in weights]),
        np.concatenate(mins) if mins else None,
    )


def _interleave(array: np.ndarray, rows: int) -> np.ndarray:
    """[N, G] → [N/R, G, R], rows padded with zeros."""
    n, groups = array.shape
    padded = -(-n // rows) * rows
    if padded != n:
        array = np.concatenate([array, np.zeros((padded - n, groups), array.dtype)])
    return np.ascontiguousarray(array.reshape(padded // rows, rows, groups).transpose(0, 2, 1))


def _pack_codes(codes: np.ndarray, fmt: QuantFormat, rows: int) -> np.ndarray:
    n, k = codes.shape
    if fmt.code_bits == 8:
        bytewise: np.ndarray = codes.reshape(n // rows, rows, k // 4, 4).transpose(0, 2, 1, 3)
        return bytewise
    g = fmt.group
    halves = codes.reshape(n // rows, rows, k // g, 2, g // 8, 4).transpose(3, 0, 2, 4, 1, 5)
    nibbles: np.ndarray = halves[0] | (halves[1] << 4)
    return nibbles


def pack_affine(
    weight: AffineWeight, fmt: QuantFormat, layout: PackedLayout
) -> dict[str, np.ndarray]:
    """codes, scales and (when the format has them) mins in the packed layout."""
    n, k = weight.codes.shape
    rows = layout.rows
    padded = layout.padded(n)
    shape = (
        (padded // rows, k // 4, rows, 4)
        if fmt.code_bits == 8
        else (padded // rows, k // fmt.group, fmt.group // 8, rows, 4)
    )
    out = np.empty(shape, np.uint8)
    run = max(1, _RUN_BYTES // max(1, k * rows)) * rows
    for start in range(0, padded, run):
        stop = min(start + run, padded)
        part = weight.codes[start:stop]
        if len(part) < stop - start:
            rest = np.zeros((stop - start - len(part), k), np.uint8)
            part = np.concatenate([part, rest])
        out[start // rows : stop // rows] = _pack_codes(part, fmt, rows)
    dtype = numpy_dtype(fmt.scale_dtype)
    packed = {"codes": out, "scales": _interleave(weight.scales.astype(dtype, copy=False), rows)}
    if fmt.has_min:
        assert weight.mins is not None
        packed["mins"] = _interleave(weight.mins.astype(dtype, copy=False), rows)
    return packed


def unpack_affine(
    packed: dict[str, np.ndarray], fmt: QuantFormat, layout: PackedLayout, n: int
) -> AffineWeight:
    """The inverse of `pack_affine`, for tests and inspection."""
    codes, padded = packed["codes"], packed["codes"].shape[0] * layout.rows
    k = packed["scales"].shape[1] * fmt.group
    if fmt.code_bits == 8:
        flat = codes.transpose(0, 2, 1, 3).reshape(padded, k)
    else:
        halves = np.stack([codes & 15, codes >> 4])  # [2, N/R, K/G, G/8, R, 4]
        flat = halves.transpose(1, 4, 2, 0, 3, 5).reshape(padded, k)

    def rows_of(array: np.ndarray) -> np.ndarray:
        rows: np.ndarray = array.transpose(0, 2, 1).reshape(padded, k // fmt.group)[:n]
        return rows

    mins = rows_of(packed["mins"]) if "mins" in packed else None
    return AffineWeight(np.ascontiguousarray(flat[:n]), rows_of(packed["scales"]), mins)


def pack_dense(array: np.ndarray, fmt: QuantFormat, layout: PackedLayout) -> dict[str, np.ndarray]:
    """data [N/R, K, R] in the format's dtype, rows padded with zeros."""
    assert fmt.dense_dtype is not None
    return {
        "data": _interleave(array.astype(numpy_dtype(fmt.dense_dtype), copy=False), layout.rows)
    }
