# mypy: ignore-errors
"""Kernels with 8-bit weights: `gemv` in float32 on vector units, `tiled` on matrix units."""

import triton
import triton.language as tl


@triton.jit
def _values(code, ZERO: tl.constexpr):
    """Codes less zero in float32."""
    value = code.to(tl.float32)
    if ZERO != 0:
        value -= ZERO
    return value


@triton.jit
def _offset(scale, mins, at, mask, ZERO: tl.constexpr):
    """What a code of 0 stands for, less: zero · scale + min, in float32."""
    if mins is None:
        return ZERO * scale
    else:
        return ZERO * scale + tl.load(mins + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def gemv(
    x,
    w,
    scales,
    mins,
    bias,
    out,
    M,
    N,
    K,
    half,  # K / 2
    scale_columns,
    x_stride,
    out_stride,
    GROUP: tl.constexpr,  # 0: one scale a row
    ZERO: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A thread holds 16 codes of several rows, half a group of 32, or one of 16. Zeros and minima
    meet the sum of its activations, which all rows share."""
    OFFSET: tl.constexpr = ZERO != 0 or mins is not None
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = tl.minimum(n, N - 1)[:, None]
    token = tl.minimum(tl.arange(0, TOKENS), M - 1).to(tl.int64)[:, None]
    HALVES: tl.constexpr = BLOCK // 16
    total = tl.zeros((TOKENS, ROWS, HALVES), tl.float32)
    if OFFSET and GROUP == 0:
        sums = tl.zeros((TOKENS, 1, HALVES), tl.float32)
    for first in tl.range(0, K, BLOCK, num_stages=STAGES):
        k = (first + tl.arange(0, BLOCK))[None, :]
        inside = k < K
        code = tl.load(w + row * K + k, mask=inside, other=0, eviction_policy="evict_first")
        # Activations in two loads of 8, so that each lies in the thread that holds its codes.
        eights = tl.permute(tl.reshape(code, (1, ROWS, HALVES, 2, 8)), (0, 1, 2, 4, 3))
        low, high = tl.split(eights)
        j = (first // 2 + tl.arange(0, BLOCK // 2))[None, :]
        at = x + token * x_stride + (j // 8) * 16 + j % 8
        a = tl.load(at, mask=j < half, other=0.0).to(tl.float32)
        b = tl.load(at + 8, mask=j < half, other=0.0).to(tl.float32)
        a = tl.reshape(a, (TOKENS, 1, HALVES, 8))
        b = tl.reshape(b, (TOKENS, 1, HALVES, 8))
        part = tl.sum(low.to(tl.float32) * a + high.to(tl.float32) * b, axis=3)
        if OFFSET:
            together = tl.sum(a + b, axis=3)
        if GROUP == 0:
            total += part
            if OFFSET:
                sums += together
        else:
            h = (first // 16 + tl.arange(0, HALVES))[None, :]
            at = row * scale_columns + h * 16 // GROUP
            at = tl.multiple_of(tl.max_contiguous(at, (1, 2)), (1, 1))  # threads as codes lie
            scale = tl.load(scales + at, mask=h * 16 < K, other=0.0).to(tl.float32)
            if OFFSET:
                offset = _offset(scale, mins, at, h * 16 < K, ZERO)
                total += part * scale[None, :, :] - together * offset[None, :, :]
            else:
                total += part * scale[None, :, :]
    result = tl.sum(total, axis=2)
    if GROUP == 0:
        at = tl.minimum(n, N - 1)
        scale = tl.load(scales + at).to(tl.float32)
        result *= scale[None, :]
        if OFFSET:
            result -= tl.sum(sums, axis=2) * _offset(scale, mins, at, n < N, ZERO)[None, :]
    if bias is not None:
        result += tl.load(bias + tl.minimum(n, N - 1)).to(tl.float32)[None, :]
    m = tl.arange(0, TOKENS)
    mask = (m < M)[:, None] & (n < N)[None, :]
    at = m.to(tl.int64)[:, None] * out_stride + n[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=mask)


@triton.jit
def tiled(
    x,
    w,
    scales,
    mins,
    bias,
    out,
    M,
    N,
    K,
    scale_columns,
    x_stride,
    out_stride,
    split_stride,
    blocks_n,
    k_blocks,  # of one split
    GROUP: tl.constexpr,  # 0: one scale a row
    ZERO: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A tile of out, or of one split's float32 partial sum; the weights are the left operand."""
    program = tl.program_id(0)
    blocks_m = tl.cdiv(M, BM)
    band = program // (8 * blocks_n)
    height = tl.minimum(blocks_m - band * 8, 8)
    inner = program % (8 * blocks_n)
    m = ((band * 8 + inner % height) * BM).to(tl.int64) + tl.arange(0, BM)
    n = ((inner // height) * BN).to(tl.int64) + tl.arange(0, BN)
    token = tl.minimum(m, M - 1)
    row = tl.minimum(n, N - 1)
    split = tl.program_id(1)
    STEP: tl.constexpr = 16 if GROUP == 16 else 32
    if GROUP == 0 and mins is not None:
        row_scale = tl.load(scales + row).to(tl.float32)[:, None]
        row_min = tl.load(mins + row).to(tl.float32)[:, None]
    total = tl.zeros((BN, BM), tl.float32)
    for block in tl.range(0, k_blocks, num_stages=STAGES):
        k = (split * k_blocks + block) * BK + tl.arange(0, BK)
        code = tl.load(w + row[:, None] * K + k[None, :], mask=(k < K)[None, :], other=0)
        if GROUP == 0:
            weight = _values(code, ZERO)
            if mins is not None:
                weight = weight * row_scale - row_min
        else:
            h = (split * k_blocks + block) * (BK // STEP) + tl.arange(0, BK // STEP)
            at = row[:, None] * scale_columns + (h * STEP // GROUP)[None, :]
            inside = (h * STEP < K)[None, :]
            scale = tl.load(scales + at, mask=inside, other=0.0).to(tl.float32)
            parts = tl.reshape(_values(code, ZERO), (BN, BK // STEP, STEP)) * scale[:, :, None]
            if mins is not None:
                minimum = tl.load(mins + at, mask=inside, other=0.0).to(tl.float32)
                parts -= minimum[:, :, None]
            weight = tl.reshape(parts, (BN, BK))
        weight = weight.to(x.dtype.element_ty)
        a = tl.load(x + token[None, :] * x_stride + k[:, None], mask=(k < K)[:, None], other=0.0)
        total = tl.dot(weight, a, total)
    if GROUP == 0 and mins is None:
        total *= tl.load(scales + row).to(tl.float32)[:, None]
    total = tl.trans(total)
    if bias is not None:
        total += tl.load(bias + row).to(tl.float32)[None, :]
    at = split.to(tl.int64) * split_stride + m[:, None] * out_stride + n[None, :]
    mask = (m < M)[:, None] & (n < N)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)
