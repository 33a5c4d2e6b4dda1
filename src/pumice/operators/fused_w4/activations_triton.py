# mypy: ignore-errors
"""Activations as `kernel_triton.py` wants them: a thread holds the 32 of a group as 16 packed
pairs, for all rows of weights that its program walks over."""

import triton
import triton.language as tl

from pumice.operators.gemm_w4.decode_triton import (
    all_scaled,
    both,
    largest,
    power_below,
    quads,
    sum_by_dots,
)


@triton.jit
def loaded_pairs(
    x, token, x_stride, first, words,
    TOKENS: tl.constexpr, GROUPS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """16 tensors of pairs, int32[TOKENS, 1, GROUPS], of 16-bit activations from group `first` on;
    zero beyond K. x_stride: in pairs."""
    j = (first * 4 + tl.arange(0, 4 * GROUPS))[None, None, :]
    at = x.to(tl.pointer_type(tl.int32)) + token[:, None, None] * x_stride + (j // 4) * 16 + j % 4
    if WHOLE:
        a, b, c, d = tl.load(at), tl.load(at + 4), tl.load(at + 8), tl.load(at + 12)
    else:
        inside = j < words
        a = tl.load(at, mask=inside, other=0)
        b = tl.load(at + 4, mask=inside, other=0)
        c = tl.load(at + 8, mask=inside, other=0)
        d = tl.load(at + 12, mask=inside, other=0)
    x0, x1, x2, x3 = quads(a, TOKENS, 1, GROUPS)
    x4, x5, x6, x7 = quads(b, TOKENS, 1, GROUPS)
    x8, x9, xa, xb = quads(c, TOKENS, 1, GROUPS)
    xc, xd, xe, xf = quads(d, TOKENS, 1, GROUPS)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf


@triton.jit
def norm_factor(
    x, token, x_stride, K, eps, TOKENS: tl.constexpr, CHUNK: tl.constexpr
):  # fmt: skip
    """1 / √(mean(x²) + eps) of float32 rows: float32[TOKENS]. CHUNK: columns at once."""
    squares = tl.zeros((TOKENS, CHUNK), tl.float32)
    for first in range(0, K, CHUNK):
        k = first + tl.arange(0, CHUNK)
        at = x + token[:, None] * x_stride + k[None, :]
        value = tl.load(at, mask=(k < K)[None, :], other=0.0)
        squares += value * value
    return 1.0 / tl.sqrt(tl.sum(squares, axis=1) / K + eps)


@triton.jit
def _expanded(pairs, TOKENS: tl.constexpr, GROUPS: tl.constexpr):
    return tl.reshape(pairs, (TOKENS, 1, GROUPS))


@triton.jit
def _apart(row, TOKENS: tl.constexpr, GROUPS: tl.constexpr):
    """int32[TOKENS, 16 · GROUPS] → 16 tensors [TOKENS, 1, GROUPS]: each group's pairs, exchanged
    between threads."""
    pairs = tl.reshape(row, (TOKENS, GROUPS, 2, 2, 2, 2))
    b0, b1 = tl.split(pairs)  # by bit 0 of the pair's place
    b00, b10 = tl.split(b0)
    b01, b11 = tl.split(b1)
    b000, b100 = tl.split(b00)
    b010, b110 = tl.split(b10)
    b001, b101 = tl.split(b01)
    b011, b111 = tl.split(b11)
    x0, x8 = tl.split(b000)
    x4, xc = tl.split(b100)
    x2, xa = tl.split(b010)
    x6, xe = tl.split(b110)
    x1, x9 = tl.split(b001)
    x5, xd = tl.split(b101)
    x3, xb = tl.split(b011)
    x7, xf = tl.split(b111)
    return (
        _expanded(x0, TOKENS, GROUPS), _expanded(x1, TOKENS, GROUPS),
        _expanded(x2, TOKENS, GROUPS), _expanded(x3, TOKENS, GROUPS),
        _expanded(x4, TOKENS, GROUPS), _expanded(x5, TOKENS, GROUPS),
        _expanded(x6, TOKENS, GROUPS), _expanded(x7, TOKENS, GROUPS),
        _expanded(x8, TOKENS, GROUPS), _expanded(x9, TOKENS, GROUPS),
        _expanded(xa, TOKENS, GROUPS), _expanded(xb, TOKENS, GROUPS),
        _expanded(xc, TOKENS, GROUPS), _expanded(xd, TOKENS, GROUPS),
        _expanded(xe, TOKENS, GROUPS), _expanded(xf, TOKENS, GROUPS),
    )  # fmt: skip


@triton.jit
def spread_pairs(
    x, token, x_stride, first, words, TOKENS: tl.constexpr, GROUPS: tl.constexpr
):  # fmt: skip
    """What `loaded_pairs` gives. Neighbouring threads read what lies side by side, in fewer turns
    of the first-level cache, and exchange."""
    j = first * 16 + tl.arange(0, GROUPS * 16)
    at = x.to(tl.pointer_type(tl.int32)) + token[:, None] * x_stride + j[None, :]
    row = tl.load(at, mask=(j < words * 4)[None, :], other=0)
    return _apart(row, TOKENS, GROUPS)


@triton.jit
def normed_pairs(
    x, weight, token, x_stride, factor, first, K,
    TOKENS: tl.constexpr, GROUPS: tl.constexpr, BRAIN: tl.constexpr,
):  # fmt: skip
    """The same of x · factor · weight, rounded to 16 bits; x and weight are float32."""
    k = first * 32 + tl.arange(0, GROUPS * 32)
    inside = k < K
    value = tl.load(x + token[:, None] * x_stride + k[None, :], mask=inside[None, :], other=0.0)
    gain = tl.load(weight + k, mask=inside, other=0.0).to(tl.float32)
    value = value * factor[:, None] * gain[None, :]
    half = value.to(tl.bfloat16) if BRAIN else value.to(tl.float16)
    bits = half.to(tl.int16, bitcast=True).to(tl.int32)
    low, high = tl.split(tl.reshape(bits, (TOKENS, GROUPS * 16, 2)))
    return _apart((low & 0xFFFF) | (high << 16), TOKENS, GROUPS)


@triton.jit
def _sum_of_eight(a, b, c, d, e, f, g, h, CODE: tl.constexpr, BRAIN: tl.constexpr):
    """The float32 sum of 16 activations."""
    if CODE == 2:
        return sum_by_dots(a, b, c, d, e, f, g, h, tl.zeros(a.shape, tl.float32), CODE, BRAIN)
    left = both(a, BRAIN) + both(b, BRAIN) + both(c, BRAIN) + both(d, BRAIN)
    return left + both(e, BRAIN) + both(f, BRAIN) + both(g, BRAIN) + both(h, BRAIN)


@triton.jit
def prepared(
    pairs, ZERO: tl.constexpr, CODE: tl.constexpr, BRAIN: tl.constexpr,
    SCALE_X: tl.constexpr, SUMS: tl.constexpr,
):  # fmt: skip
    """What a slice of activations needs to meet words: (16 pairs, scaled by a power of two where
    sums are made in float16; its inverse; the sum of all 32; what CODE 2's offsets of the codes add
    to a product)."""
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf = pairs
    up = 1.0
    if SCALE_X:
        amax = largest(x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf, CODE, BRAIN)
        down, up = power_below(amax, BRAIN)
        pairs = all_scaled(pairs, down, CODE, BRAIN)
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf = pairs
    total = 0.0
    offset = 0.0
    if SUMS or CODE == 2:
        # `scaled` makes float16 of bfloat16.
        WIDE: tl.constexpr = BRAIN and not SCALE_X
        even = _sum_of_eight(x0, x2, x4, x6, x8, xa, xc, xe, CODE, WIDE)
        odd = _sum_of_eight(x1, x3, x5, x7, x9, xb, xd, xf, CODE, WIDE)
        if SUMS:
            total = even + odd
        if CODE == 2:  # words give 1024 + code and 1024 + 16 · code
            offset = (ZERO + 1024.0) * even + (ZERO + 64.0) * odd
    return pairs, up, total, offset
