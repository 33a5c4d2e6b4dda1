"""The layouts that the 4-bit kernels read, and the formats they are packed from, in NumPy.

A row's codes lie eight to a 32-bit word along K: int32[N, K/8]. Inside a word, code 2p is nibble p
of the low half and code 2p + 1 nibble p of the high half, so that one mask (0x000f000f, shifted)
picks two neighbours along K, one for each half of a packed float16 pair:

    bits   0-3 4-7 8-11 12-15 | 16-19 20-23 24-27 28-31
    code    0   2   4    6    |   1    3     5     7

packing "rows": words in K's order; 16 bytes are 32 neighbouring codes. For vector units.
packing "blocks", for K a multiple of 128: word t of group γ (of 32 codes) of each block of 128 lies
at place 4t + γ; the 16 bytes that lane t of a small matrix instruction loads are its part of four
groups. For NVIDIA's matrix units.

Scales are float16[N, K/group]; zero points, where a format has them, uint8[N, K/group]:
w = (code − zero) · scale. Or minima, float16[N, K/group]: w = code · scale − min (GGUF's Q4_1 and
Q4_K, as `quantization/base.py` has them).
"""

from __future__ import annotations

import numpy as np

from pumice.errors import ModelFileError, UsageError
from pumice.quantization.mlc import unpack_words

_ORDER = np.array([0, 2, 4, 6, 1, 3, 5, 7])  # code of each nibble, the lowest first
_AWQ = np.array([0, 2, 4, 6, 1, 3, 5, 7])  # column of each nibble in AutoAWQ's words
_SHIFTS = np.arange(0, 32, 4, dtype=np.uint32)


def best_packing(k: int, api: str) -> str:
    """The packing that the fastest kernels of a target's api read, for K codes a row. Vector units
    are ahead for one token on all of them (H200: 2.9 TB/s of "rows", 2.1 of "blocks")."""
    return "rows"


def _exchange(words: np.ndarray) -> np.ndarray:
    """Words between the two packings: a transposition inside each 16, its own inverse."""
    n, count = words.shape
    if count % 16:
        raise ModelFileError(f"packing in blocks needs K a multiple of 128, not {count * 8}")
    blocks = words.reshape(n, count // 16, 4, 4).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(blocks).reshape(n, count)


def _known(packing: str) -> None:
    if packing not in ("rows", "blocks"):
        raise UsageError(f"packing is {packing!r}; allowed: 'rows', 'blocks'")


def pack(codes: np.ndarray, packing: str = "rows") -> np.ndarray:
    """Codes uint8[N, K] of 0 … 15 → int32[N, K/8]. K is a multiple of 32."""
    _known(packing)
    if codes.ndim != 2 or codes.dtype.kind not in "iu":
        raise UsageError(f"codes are {codes.dtype}{list(codes.shape)}; allowed: integers [N, K]")
    n, k = codes.shape
    if k % 32:
        raise ModelFileError(f"4-bit weights have K = {k}; it must be a multiple of 32")
    if codes.size and (int(codes.max()) > 15 or int(codes.min()) < 0):
        wrong = int(codes.max() if codes.max() > 15 else codes.min())
        raise ModelFileError(f"4-bit weights hold code {wrong}; 0 to 15 are allowed")
    nibbles = codes.reshape(n, k // 8, 8)[:, :, _ORDER].astype(np.uint32)
    words: np.ndarray = np.bitwise_or.reduce(nibbles << _SHIFTS, axis=-1).view(np.int32)
    return _exchange(words) if packing == "blocks" else words


def unpack(words: np.ndarray, packing: str = "rows") -> np.ndarray:
    """int32[N, K/8] → codes uint8[N, K]."""
    _known(packing)
    n, count = words.shape
    if packing == "blocks":
        words = _exchange(words)
    nibbles = (np.ascontiguousarray(words).view(np.uint32)[:, :, None] >> _SHIFTS) & 15
    codes = np.empty((n, count, 8), np.uint8)
    codes[:, :, _ORDER] = nibbles
    return codes.reshape(n, count * 8)


def from_mlc(words: np.ndarray, packing: str = "rows") -> np.ndarray:
    """q4f16_1's uint32[N, K/8], the lowest k in the lowest bits → int32[N, K/8]."""
    return pack(unpack_words(words, 4), packing)


def _fields(words: np.ndarray) -> np.ndarray:
    """int32[A, B] → uint8[A, B, 8], the lowest nibble first."""
    wide = np.ascontiguousarray(words).view(np.uint32)[:, :, None]
    return ((wide >> _SHIFTS) & 15).astype(np.uint8)


def _fitting(
    form: str, qweight: np.ndarray, qzeros: np.ndarray, scales: np.ndarray, axis: int
) -> None:
    """ModelFileError unless a format's tensors are of one weight. axis: of qweight, along which
    eight codes share a word."""
    given = {"qweight": qweight, "qzeros": qzeros, "scales": scales}
    for name, tensor in given.items():
        dtype = "float16" if name == "scales" else "int32"
        if tensor.ndim != 2 or tensor.dtype not in (dtype, dtype.replace("int", "uint")):
            raise ModelFileError(
                f"{form}: {name} is {tensor.dtype}{list(tensor.shape)}; allowed: {dtype}, two axes"
            )
    k, n = (size * (8 if at == axis else 1) for at, size in enumerate(qweight.shape))
    groups = scales.shape[0]
    if not groups or k % groups or k // groups % 32:
        raise ModelFileError(
            f"{form}: {k} codes a row have {groups} scales; allowed: groups of a multiple of 32"
        )
    for name, needed in (("scales", (groups, n)), ("qzeros", (groups, n // 8))):
        if given[name].shape != needed:
            raise ModelFileError(
                f"{form}: {name} is {list(given[name].shape)} beside qweight "
                f"{list(qweight.shape)}; allowed: {list(needed)}"
            )


def from_awq(
    qweight: np.ndarray, qzeros: np.ndarray, scales: np.ndarray, packing: str = "rows"
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """AutoAWQ's "gemm" tensors: qweight int32[K, N/8], qzeros int32[K/G, N/8], scales
    float16[K/G, N], columns of a word in the order 0 2 4 6 1 3 5 7 → (words, scales, zeros)."""

    def columns(words: np.ndarray) -> np.ndarray:
        fields = _fields(words)
        found = np.empty_like(fields)
        found[:, :, _AWQ] = fields
        return found.reshape(words.shape[0], -1)

    _fitting("AWQ", qweight, qzeros, scales, 1)
    codes, zeros = columns(qweight).T, columns(qzeros).T
    return pack(codes, packing), np.ascontiguousarray(scales.T), np.ascontiguousarray(zeros)


def from_gptq(
    qweight: np.ndarray,
    qzeros: np.ndarray,
    scales: np.ndarray,
    packing: str = "rows",
    *,
    zero_offset: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """GPTQ's tensors without reordering: qweight int32[K/8, N], qzeros int32[K/G, N/8], scales
    float16[K/G, N]; zeros are stored less `zero_offset` (1 in version 1 of the format, 0 in
    version 2) → (words, scales, zeros)."""
    _fitting("GPTQ", qweight, qzeros, scales, 0)
    codes = _fields(qweight).transpose(1, 0, 2).reshape(qweight.shape[1], -1)
    zeros = _fields(qzeros).reshape(qzeros.shape[0], -1).T + np.uint8(zero_offset)
    return pack(codes, packing), np.ascontiguousarray(scales.T), np.ascontiguousarray(zeros)


def dequantize(
    words: np.ndarray,
    scales: np.ndarray,
    zeros: np.ndarray | int,
    packing: str = "rows",
    mins: np.ndarray | None = None,
) -> np.ndarray:
    """float64[N, K] of packed weights."""
    codes = unpack(words, packing).astype(np.float64)
    group = codes.shape[1] // max(scales.shape[1], 1)
    wide = np.repeat(scales.astype(np.float64), group, axis=1)
    zero = zeros if isinstance(zeros, int) else np.repeat(zeros.astype(np.float64), group, axis=1)
    weight = np.asarray((codes - zero) * wide)
    return weight if mins is None else weight - np.repeat(mins.astype(np.float64), group, axis=1)
