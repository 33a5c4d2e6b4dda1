# mypy: ignore-errors
"""Kernels with 4-bit weights: `gemv` on vector units for few tokens, `tiled` on matrix units, and
`dequantize_tiles`. `layout.py` says how a word holds its codes."""

import triton
import triton.language as tl

from pumice.operators.gemm_w4.decode_triton import (
    all_scaled,
    largest,
    pair_sum,
    power_below,
    quads,
    sum_by_dots,
    sum_of_pairs,
    words_step,
)
from pumice.operators.gemm_w4.weights_triton import dequantized


@triton.jit
def _zero_of(zeros, at, mask, ZERO: tl.constexpr):
    if zeros is None:
        return ZERO
    else:
        return tl.load(zeros + at, mask=mask, other=0).to(tl.int32)


@triton.jit
def _fetch(
    w, scales, row, first, words, groups, scale_columns, PER: tl.constexpr, GROUPS: tl.constexpr
):
    """Words [1, ROWS, 4 · GROUPS] and float16 scales [1, ROWS, GROUPS] from group `first`."""
    j = (first * 4 + tl.arange(0, 4 * GROUPS))[None, None, :]
    g = (first + tl.arange(0, GROUPS))[None, None, :]
    word = tl.load(w + row * words + j, mask=j < words, other=0, eviction_policy="evict_first")
    # One scale a thread, neighbours along K in neighbouring threads, as the words lie: an alignment
    # of one element keeps loads narrow, so that nothing has to be exchanged.
    at = tl.multiple_of(tl.max_contiguous(row * scale_columns + g // PER, (1, 1, 2)), (1, 1, 1))
    return word, tl.load(scales + at, mask=g < groups, other=0.0)


@triton.jit
def _min_of(mins, row, first, groups, scale_columns, PER: tl.constexpr, GROUPS: tl.constexpr):
    """Minima [1, ROWS, GROUPS] from group `first`, as the scales lie."""
    g = (first + tl.arange(0, GROUPS))[None, None, :]
    at = tl.multiple_of(tl.max_contiguous(row * scale_columns + g // PER, (1, 1, 2)), (1, 1, 1))
    return tl.load(mins + at, mask=g < groups, other=0.0)


@triton.jit
def gemv(
    x,
    w,
    scales,
    zeros,
    mins,
    bias,
    out,
    M,
    N,
    words,
    groups,
    scale_columns,
    x_stride,  # in pairs
    out_stride,
    ZERO: tl.constexpr,
    PER: tl.constexpr,  # groups of 32 that share a scale
    CODE: tl.constexpr,
    BRAIN: tl.constexpr,
    SCALE_X: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    AHEAD: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A thread holds groups of 32 codes of several rows, 16 bytes each, and the 32 activations that
    they meet. Products of a group are added in float16 pairs (CODE 1); the activations of a group
    are scaled by a power of two before, so that no such sum overflows or loses small values. Minima
    meet the group's sum of activations: Σ (code · scale − min) · x is Σ (code − ZERO) · x · scale −
    Σ x · (min − ZERO · scale), where ZERO in the middle of the codes keeps both sums small."""
    program = tl.program_id(0).to(tl.int64)
    n = program * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(n, N - 1)[None, :, None]
    token = tl.minimum(tl.arange(0, TOKENS), M - 1).to(tl.int64)[:, None, None]
    pairs = x.to(tl.pointer_type(tl.int32))
    total = tl.zeros((TOKENS, ROWS, GROUPS), tl.float32)
    if AHEAD:
        word, scale = _fetch(w, scales, row, 0, words, groups, scale_columns, PER, GROUPS)
        if mins is not None:
            minimum = _min_of(mins, row, 0, groups, scale_columns, PER, GROUPS)
    for first in tl.range(0, groups, GROUPS, num_stages=STAGES):
        j = (first * 4 + tl.arange(0, 4 * GROUPS))[None, None, :]
        g = (first + tl.arange(0, GROUPS))[None, None, :]
        inside = j < words
        if AHEAD:  # the next step's weights are under way while this one's are used
            next_word, next_scale = _fetch(
                w, scales, row, first + GROUPS, words, groups, scale_columns, PER, GROUPS
            )
            if mins is not None:
                next_minimum = _min_of(
                    mins, row, first + GROUPS, groups, scale_columns, PER, GROUPS
                )
        else:
            word, scale = _fetch(w, scales, row, first, words, groups, scale_columns, PER, GROUPS)
            if mins is not None:
                minimum = _min_of(mins, row, first, groups, scale_columns, PER, GROUPS)
        at = row * scale_columns + g // PER
        at = tl.multiple_of(tl.max_contiguous(at, (1, 1, 2)), (1, 1, 1))
        zero = _zero_of(zeros, at, g < groups, ZERO)
        px = pairs + token * x_stride + ((j // 4) * 16 + j % 4)
        x0, x1, x2, x3 = quads(tl.load(px, mask=inside, other=0), TOKENS, 1, GROUPS)
        x4, x5, x6, x7 = quads(tl.load(px + 4, mask=inside, other=0), TOKENS, 1, GROUPS)
        x8, x9, xa, xb = quads(tl.load(px + 8, mask=inside, other=0), TOKENS, 1, GROUPS)
        xc, xd, xe, xf = quads(tl.load(px + 12, mask=inside, other=0), TOKENS, 1, GROUPS)
        if SCALE_X:
            amax = largest(
                x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf, CODE, BRAIN
            )
            down, up = power_below(amax, BRAIN)
            x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf = all_scaled(
                (x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf), down, CODE, BRAIN
            )
        four = quads(word, 1, ROWS, GROUPS)
        if CODE == 1:
            u = tl.zeros((TOKENS, ROWS, GROUPS), tl.int32)
        else:
            u = tl.zeros((TOKENS, ROWS, GROUPS), tl.float32)
        activations = (x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf)
        u, v = words_step(four, activations, u, u, zero, CODE, BRAIN)
        if CODE == 1:
            part = pair_sum(u, v)
        elif CODE == 2:  # totals of (1024 + code) · x and of (1024 + 16 · code) · x
            none = tl.zeros((TOKENS, 1, GROUPS), tl.float32)
            even = sum_by_dots(x0, x2, x4, x6, x8, xa, xc, xe, none, CODE, BRAIN)
            odd = sum_by_dots(x1, x3, x5, x7, x9, xb, xd, xf, none, CODE, BRAIN)
            part = u - (zero + 1024.0) * even + (v * 0.0625 - (zero + 64.0) * odd)
        else:
            part = u + v
        if mins is not None:
            if CODE == 2:
                together = even + odd
            else:
                together = sum_of_pairs(
                    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, xa, xb, xc, xd, xe, xf, CODE, BRAIN
                )
            offset = minimum.to(tl.float32)
            if ZERO != 0:
                offset -= ZERO * scale.to(tl.float32)
            part = part * scale.to(tl.float32) - together * offset
            if SCALE_X:
                part = part * up
            total += part
        else:
            if SCALE_X:
                part = part * up
            total += part * scale.to(tl.float32)
        if AHEAD:
            word, scale = next_word, next_scale
            if mins is not None:
                minimum = next_minimum
    result = tl.sum(total, axis=2)
    if bias is not None:
        result += tl.load(bias + tl.minimum(n, N - 1)).to(tl.float32)[None, :]
    m = tl.arange(0, TOKENS)
    at = m.to(tl.int64)[:, None] * out_stride + n[None, :]
    mask = (m < M)[:, None] & (n < N)[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _weights(
    w, scales, zeros, mins, row, k, words, scale_columns,
    ZERO: tl.constexpr, GROUP: tl.constexpr, CODE: tl.constexpr, BRAIN: tl.constexpr,
    BLOCKS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Weights [BN, BK] of rows `row` from column `k`, zero beyond K, in K's order."""
    column = k // 8 + tl.arange(0, BK // 8)
    inside = (column < words)[None, :]
    word = tl.load(w + row[:, None] * words + column[None, :], mask=inside, other=0)
    if BLOCKS:  # place 4t + γ of a block of 16 words holds word t of group γ
        group = ((column // 16) * 4 + column % 4) // (GROUP // 32)
    else:
        group = column // (GROUP // 8)
    at = row[:, None] * scale_columns + group[None, :]
    at = tl.multiple_of(tl.max_contiguous(at, (1, 2)), (1, 1))  # threads as the words lie
    scale = tl.load(scales + at, mask=inside, other=0.0)
    zero = _zero_of(zeros, at, inside, ZERO)
    minimum = None
    if mins is not None:
        minimum = tl.load(mins + at, mask=inside, other=0.0)
    weight = dequantized(word, scale, zero, minimum, BN, BK // 8, CODE, BRAIN)
    if BLOCKS:
        parts = tl.reshape(weight, (BN, BK // 128, 4, 4, 8))
        weight = tl.reshape(tl.permute(parts, (0, 1, 3, 2, 4)), (BN, BK))
    return weight


@triton.jit
def tiled(
    x,
    w,
    scales,
    zeros,
    mins,
    bias,
    out,
    M,
    N,
    K,
    words,
    scale_columns,
    x_stride,
    out_stride,
    split_stride,
    blocks_n,
    k_blocks,  # of one split
    ZERO: tl.constexpr,
    GROUP: tl.constexpr,
    CODE: tl.constexpr,
    BRAIN: tl.constexpr,
    BLOCKS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A tile of out, or of one split's float32 partial sum. The weights' rows lie on the matrix
    unit's long side: few tokens then waste less of it, and weights go there from registers."""
    program = tl.program_id(0)
    # eight blocks of tokens share a block of weights in the cache
    blocks_m = tl.cdiv(M, BM)
    band = program // (8 * blocks_n)
    height = tl.minimum(blocks_m - band * 8, 8)
    inner = program % (8 * blocks_n)
    m = ((band * 8 + inner % height) * BM).to(tl.int64) + tl.arange(0, BM)
    n = ((inner // height) * BN).to(tl.int64) + tl.arange(0, BN)
    token = tl.minimum(m, M - 1)
    row = tl.minimum(n, N - 1)
    split = tl.program_id(1)
    first = split * k_blocks
    total = tl.zeros((BN, BM), tl.float32)
    for block in tl.range(0, k_blocks, num_stages=STAGES):
        k = (first + block) * BK
        column = k + tl.arange(0, BK)
        weight = _weights(
            w, scales, zeros, mins, row, k, words, scale_columns,
            ZERO, GROUP, CODE, BRAIN, BLOCKS, BN, BK,
        )  # fmt: skip
        at = token[None, :] * x_stride + column[:, None]
        a = tl.load(x + at, mask=(column < K)[:, None], other=0.0)
        total = tl.dot(weight, a, total)
    total = tl.trans(total)
    if bias is not None:
        total += tl.load(bias + row).to(tl.float32)[None, :]
    at = split.to(tl.int64) * split_stride + m[:, None] * out_stride + n[None, :]
    mask = (m < M)[:, None] & (n < N)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


@triton.jit
def sum_splits(partial, bias, out, M, N, out_stride, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Partial sums [SPLITS, M, N] added in order, a row's block a program."""
    blocks = tl.cdiv(N, BLOCK)
    program = tl.program_id(0)
    m = (program // blocks).to(tl.int64)
    n = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
    inside = n < N
    total = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(partial + (split * M + m) * N + n, mask=inside, other=0.0)
    if bias is not None:
        total += tl.load(bias + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + m * out_stride + n, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def dequantize_tiles(
    w,
    scales,
    zeros,
    mins,
    out,
    N,
    K,
    words,
    scale_columns,
    out_stride,
    column_blocks,
    ZERO: tl.constexpr,
    GROUP: tl.constexpr,
    CODE: tl.constexpr,
    BRAIN: tl.constexpr,
    BLOCKS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Weights in 16 bits, for products by a library."""
    program = tl.program_id(0)
    n = (program // column_blocks).to(tl.int64) * BN + tl.arange(0, BN)
    k = (program % column_blocks) * BK
    row = tl.minimum(n, N - 1)
    weight = _weights(
        w, scales, zeros, mins, row, k, words, scale_columns,
        ZERO, GROUP, CODE, BRAIN, BLOCKS, BN, BK,
    )  # fmt: skip
    column = k + tl.arange(0, BK)
    mask = (n < N)[:, None] & (column < K)[None, :]
    tl.store(out + n[:, None] * out_stride + column[None, :], weight, mask=mask)
