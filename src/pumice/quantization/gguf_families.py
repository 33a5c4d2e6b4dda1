"""The GGUF block formats, unpacked into the canonical affine form without requantizing.

Block layouts: ggml's `ggml-common.h` and `ggml-quants.c` (block_q4_0 … block_q6_K); the names are
GGUF's. Each function takes raw rows uint8[N, row bytes] and returns an AffineWeight. Scales that
a file holds as one float16 stay float16; the products of the K families (super-block scale times
sub-block scale) need more bits and are float32, which holds them exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pumice.quantization.base import AffineWeight

Unpack = Callable[[np.ndarray], AffineWeight]


def _blocks(raw: np.ndarray, nbytes: int) -> np.ndarray:
    """uint8[N, blocks, bytes of a block]."""
    return raw.reshape(raw.shape[0], raw.shape[1] // nbytes, nbytes)


def _f16(blocks: np.ndarray, start: int) -> np.ndarray:
    """One float16 a block: [N, blocks]."""
    return np.ascontiguousarray(blocks[..., start : start + 2]).view(np.float16)[..., 0]


def _flat(codes: np.ndarray) -> np.ndarray:
    return codes.reshape(codes.shape[0], math.prod(codes.shape[1:]))


def _nibbles(qs: np.ndarray) -> np.ndarray:
    """16 bytes → 32 codes: low nibbles first."""
    return np.concatenate([qs & 15, qs >> 4], axis=-1)


def _fifth_bit(qh: np.ndarray) -> np.ndarray:
    """4 bytes of high bits → uint8[…, 32] holding 0 or 16."""
    bits = np.unpackbits(qh, axis=-1, bitorder="little")
    return bits << 4


def unpack_q4_0(raw: np.ndarray) -> AffineWeight:
    """18 bytes: d, 16 bytes of nibbles; w = d·(q − 8)."""
    b = _blocks(raw, 18)
    return AffineWeight(_flat(_nibbles(b[..., 2:])), _f16(b, 0), None)


def unpack_q4_1(raw: np.ndarray) -> AffineWeight:
    """20 bytes: d, m, nibbles; w = d·q + m."""
    b = _blocks(raw, 20)
    return AffineWeight(_flat(_nibbles(b[..., 4:])), _f16(b, 0), -_f16(b, 2))


def unpack_q5_0(raw: np.ndarray) -> AffineWeight:
    """22 bytes: d, 32 high bits, nibbles; w = d·(q − 16)."""
    b = _blocks(raw, 22)
    codes = _nibbles(b[..., 6:]) | _fifth_bit(b[..., 2:6])
    return AffineWeight(_flat(codes), _f16(b, 0), None)


def unpack_q5_1(raw: np.ndarray) -> AffineWeight:
    """24 bytes: d, m, 32 high bits, nibbles; w = d·q + m."""
    b = _blocks(raw, 24)
    codes = _nibbles(b[..., 8:]) | _fifth_bit(b[..., 4:8])
    return AffineWeight(_flat(codes), _f16(b, 0), -_f16(b, 2))


def unpack_q8_0(raw: np.ndarray) -> AffineWeight:
    """34 bytes: d, 32 signed codes; w = d·q. The codes are shifted by 128 to be unsigned."""
    b = _blocks(raw, 34)
    return AffineWeight(_flat(b[..., 2:] ^ np.uint8(0x80)), _f16(b, 0), None)


def _two_bits(qs: np.ndarray) -> np.ndarray:
    """64 bytes → 256 codes of two bits: halves of 32 bytes, each read at shifts 0, 2, 4, 6."""
    halves = qs.reshape(*qs.shape[:-1], 2, 1, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)
    return ((halves >> shifts) & 3).reshape(*qs.shape[:-1], 256)


def unpack_q2_k(raw: np.ndarray) -> AffineWeight:
    """84 bytes: 16 × (scale, min) nibbles, 256 two-bit codes, d, dmin; groups of 16."""
    b = _blocks(raw, 84)
    scales = _f16(b, 80).astype(np.float32)[..., None] * (b[..., :16] & 15)
    mins = _f16(b, 82).astype(np.float32)[..., None] * (b[..., :16] >> 4)
    return AffineWeight(_flat(_two_bits(b[..., 16:80])), _flat(scales), _flat(mins))


def unpack_q3_k(raw: np.ndarray) -> AffineWeight:
    """110 bytes: 256 high bits, 256 two-bit codes, 16 six-bit scales, d; groups of 16.

    w = d·(sc − 32)·(q − 4).
    """
    b = _blocks(raw, 110)
    # High bit of code 32·i + l is bit i of hmask[l].
    high = (b[..., None, :32] >> np.arange(8, dtype=np.uint8).reshape(8, 1)) & 1
    codes = _two_bits(b[..., 32:96]) | (high.reshape(*b.shape[:-1], 256) << 2)
    packed = b[..., 96:108]
    low, top = packed[..., :8], packed[..., 8:]
    low = np.concatenate([low & 15, low >> 4], axis=-1)  # [N, blocks, 16]
    top = (top[..., None, :] >> np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)) & 3
    six = low | (top.reshape(*b.shape[:-1], 16) << 4)
    scales = _f16(b, 108).astype(np.float32)[..., None] * (six.astype(np.int8) - np.int8(32))
    return AffineWeight(_flat(codes), _flat(scales.astype(np.float32)), None)


def _k_scales(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """12 bytes → eight six-bit scales and eight six-bit mins (Q4_K and Q5_K)."""
    d, m, md = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate([d & 63, (md & 15) | ((d >> 2) & 0x30)], axis=-1)
    mins = np.concatenate([m & 63, (md >> 4) | ((m >> 2) & 0x30)], axis=-1)
    return scales, mins


def _k_affine(b: np.ndarray, codes: np.ndarray) -> AffineWeight:
    sub_scales, sub_mins = _k_scales(b[..., 4:16])
    scales = _f16(b, 0).astype(np.float32)[..., None] * sub_scales
    mins = _f16(b, 2).astype(np.float32)[..., None] * sub_mins
    return AffineWeight(_flat(codes), _flat(scales), _flat(mins))


def _k_nibbles(qs: np.ndarray) -> np.ndarray:
    """128 bytes → 256 codes: each run of 32 bytes gives 32 low nibbles, then 32 high ones."""
    runs = qs.reshape(*qs.shape[:-1], 4, 1, 32)
    return (runs >> np.array([0, 4], dtype=np.uint8).reshape(2, 1)) & 15


def unpack_q4_k(raw: np.ndarray) -> AffineWeight:
    """144 bytes: d, dmin, 8 × six-bit (scale, min), 256 nibbles; groups of 32."""
    b = _blocks(raw, 144)
    return _k_affine(b, _k_nibbles(b[..., 16:]).reshape(*b.shape[:-1], 256))


def unpack_q5_k(raw: np.ndarray) -> AffineWeight:
    """176 bytes: as Q4_K with 256 high bits: bit i of qh[l] belongs to code 32·i + l."""
    b = _blocks(raw, 176)
    codes = _k_nibbles(b[..., 48:]).reshape(*b.shape[:-1], 8, 32)
    high = (b[..., None, 16:48] >> np.arange(8, dtype=np.uint8).reshape(8, 1)) & 1
    return _k_affine(b, (codes | (high << 4)).reshape(*b.shape[:-1], 256))


def unpack_q6_k(raw: np.ndarray) -> AffineWeight:
    """210 bytes: 256 low nibbles, 256 high pairs, 16 signed scales, d; groups of 16.

    w = d·sc·(q − 32).
    """
    b = _blocks(raw, 210)
    shifts = np.array([0, 4], dtype=np.uint8).reshape(2, 1)
    low = b[..., :128].reshape(*b.shape[:-1], 2, 1, 64) >> shifts
    low_codes = (low & 15).reshape(*b.shape[:-1], 256)
    high = b[..., 128:192].reshape(*b.shape[:-1], 2, 1, 32)
    pairs = (high >> np.array([0, 2, 4, 6], dtype=np.uint8).reshape(4, 1)) & 3
    codes = low_codes | (pairs.reshape(*b.shape[:-1], 256) << 4)
    sub = np.ascontiguousarray(b[..., 192:208]).view(np.int8)
    scales: np.ndarray = _f16(b, 208).astype(np.float32)[..., None] * sub
    return AffineWeight(_flat(codes), _flat(scales.astype(np.float32)), None)


#: format name → (GGML type number, bytes of a block, weights of a block, unpack)
GGUF_BLOCKS: dict[str, tuple[int, int, int, Unpack]] = {
    "q4_0": (2, 18, 32, unpack_q4_0),
    "q4_1": (3, 20, 32, unpack_q4_1),
    "q5_0": (6, 22, 32, unpack_q5_0),
    "q5_1": (7, 24, 32, unpack_q5_1),
    "q8_0": (8, 34, 32, unpack_q8_0),
    "q2_k": (10, 84, 256, unpack_q2_k),
    "q3_k": (11, 110, 256, unpack_q3_k),
    "q4_k": (12, 144, 256, unpack_q4_k),
    "q5_k": (13, 176, 256, unpack_q5_k),
    "q6_k": (14, 210, 256, unpack_q6_k),
}
