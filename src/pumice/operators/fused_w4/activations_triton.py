# mypy: ignore-errors
"""Activations as `kernel_triton.py` wants them: a thread holds the 32 of a group as 16 packed
pairs, for all rows of weights that its program walks over."""

import triton
import triton.language as tl

from pumice.operators.gemm_w4.decode_triton import (
    both,
    largest,
    multiply_add,
    power_below,
    quads,
    scaled,
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
def _sum_of_eight(a, b, c, d, e, f, g, h, CODE: tl.constexpr, BRAIN: tl.constexpr):
    """The float32 sum of 16 activations."""
    if CODE == 2:
        one = 0x3C003C00
        total = multiply_add(one, a, tl.zeros(a.shape, tl.float32), 0, CODE, BRAIN)
        total = multiply_add(one, b, total, 0, CODE, BRAIN)
        total = multiply_add(one, c, total, 0, CODE, BRAIN)
        total = multiply_add(one, d, total, 0, CODE, BRAIN)
        total = multiply_add(one, e, total, 0, CODE, BRAIN)
        total = multiply_add(one, f, total, 0, CODE, BRAIN)
        total = multiply_add(one, g, total, 0, CODE, BRAIN)
        return multiply_add(one, h, total, 0, CODE, BRAIN)
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
        x0 = scaled(x0, down, CODE, BRAIN)
        x1 = scaled(x1, down, CODE, BRAIN)
        x2 = scaled(x2, down, CODE, BRAIN)
        x3 = scaled(x3, down, CODE, BRAIN)
        x4 = scaled(x4, down, CODE, BRAIN)
        x5 = scaled(x5, down, CODE, BRAIN)
        x6 = scaled(x6, down, CODE, BRAIN)
        x7 = scaled(x7, down, CODE, BRAIN)
        x8 = scaled(x8, down, CODE, BRAIN)
        x9 = scaled(x9, down, CODE, BRAIN)
        xa = scaled(xa, down, CODE, BRAIN)
        xb = scaled(xb, down, CODE, BRAIN)
        xc = scaled(xc, down, CODE, BRAIN)
        xd = scaled(xd, down, CODE, BRAIN)
        xe = scaled(xe, down, CODE, BRAIN)
        xf = scaled(xf, down, CODE, BRAIN)
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
    made = (x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf)
    return made, up, total, offset
