# mypy: ignore-errors
"""Tiles of x·wᵀ on matrix units: whole tiles, tiles split along K, and a mix of both."""

import triton
import triton.language as tl

from pumice.operators.gemm.common_triton import finish, spread, tile_of
from pumice.operators.triton.float8_triton import decode_e4m3


@triton.jit
def gemm_tile(
    x, w, x_scale, w_scale, bias, residual, out, partial,
    M, N, K,
    stride_xb, stride_xm, stride_wb, stride_wn, stride_rb, stride_rm, stride_ob, stride_om,
    whole, split, slice_k,
    BM: tl.constexpr, BN: tl.constexpr, BN2: tl.constexpr, BK: tl.constexpr,
    GROUP_M: tl.constexpr, DIES: tl.constexpr, EVEN_K: tl.constexpr, SPLIT: tl.constexpr,
    PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, X_SCALE: tl.constexpr,
    W_SCALE: tl.constexpr, UPCAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program, one tile [BM, BN], or one slice of K of one. BN2: columns beside those, where a
    tile's width is the sum of two powers of two (whole tiles only). EARLY: a programmatic launch,
    begun before the one in front has ended; it lets the one behind begin at once (1) or, so that
    programs of few waves spread evenly over the units, when its products are done (2).

    With SPLIT the first `whole` programs do whole tiles; of the tiles after those, `split` programs
    each do `slice_k` of K and leave their sums in partial [tiles, split, BM, BN]. UPCAST: 8-bit
    floats are multiplied as float16, which holds all their values.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
    if EARLY == 1:
        tl.extra.cuda.gdc_launch_dependents()
    pid = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN + BN2)
    tile = pid
    k_begin = 0
    k_end = K
    if SPLIT:
        if pid >= whole:
            # Slices of one tile are apart in time: neighbours then share x and w, not K.
            tail = tiles_m * tiles_n - whole
            tile = whole + (pid - whole) % tail
            k_begin = (pid - whole) // tail * slice_k
            k_end = tl.minimum(K, k_begin + slice_k)
    else:
        tile = spread(pid, tiles_m * tiles_n, DIES)
    tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP_M)

    # Scalar bases in 64 bits, offsets inside a tile in 32: half the address registers. Rows beyond
    # the last repeat it, which needs no mask.
    row0 = tile_m * BM
    col0 = tile_n * (BN + BN2)
    rows = tl.minimum(tl.arange(0, BM), M - 1 - row0)
    cols = tl.minimum(tl.arange(0, BN), N - 1 - col0)
    ks = tl.arange(0, BK)
    x_at = x + batch * stride_xb + row0.to(tl.int64) * stride_xm + k_begin
    w_at = w + batch * stride_wb + col0.to(tl.int64) * stride_wn + k_begin
    x_tile = rows[:, None] * stride_xm + ks[None, :]
    w_tile = cols[None, :] * stride_wn + ks[:, None]

    INTEGER: tl.constexpr = x.dtype.element_ty == tl.int8
    acc = tl.zeros((BM, BN), dtype=tl.int32 if INTEGER else tl.float32)
    if BN2:
        tl.static_assert(not INTEGER and not UPCAST and not SPLIT)
        more = tl.minimum(BN + tl.arange(0, BN2), N - 1 - col0)
        w_more = more[None, :] * stride_wn + ks[:, None]
        acc2 = tl.zeros((BM, BN2), dtype=tl.float32)
    for k in range(k_begin, k_end, BK):
        if EVEN_K:
            a = tl.load(x_at + x_tile)
            b = tl.load(w_at + w_tile)
        else:
            a = tl.load(x_at + x_tile, mask=ks[None, :] < K - k, other=0.0)
            b = tl.load(w_at + w_tile, mask=ks[:, None] < K - k, other=0.0)
        if UPCAST:
            a = decode_e4m3(a)
            b = decode_e4m3(b)
        if INTEGER:
            acc = tl.dot(a, b, acc, out_dtype=tl.int32)
        else:
            acc = tl.dot(a, b, acc, input_precision=PRECISION)
        if BN2:
            if EVEN_K:
                b2 = tl.load(w_at + w_more)
            else:
                b2 = tl.load(w_at + w_more, mask=ks[:, None] < K - k, other=0.0)
            acc2 = tl.dot(a, b2, acc2, input_precision=PRECISION)
        x_at += BK
        w_at += BK
    if EARLY == 2:
        tl.extra.cuda.gdc_launch_dependents()

    rows = row0 + tl.arange(0, BM)
    cols = col0 + tl.arange(0, BN)
    if SPLIT:
        if pid >= whole:
            tail = tiles_m * tiles_n - whole
            slot = (batch * tail + tile - whole) * split + (pid - whole) // tail
            inside = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
            tl.store(partial + slot * (BM * BN) + inside, acc)
            return
    finish(
        acc, x_scale, w_scale, bias,
        None if residual is None else residual + batch * stride_rb,
        out + batch * stride_ob, rows, cols, M, N, stride_rm, stride_om,
        ACTIVATION, X_SCALE, W_SCALE,
    )  # fmt: skip
    if BN2:
        finish(
            acc2, x_scale, w_scale, bias,
            None if residual is None else residual + batch * stride_rb,
            out + batch * stride_ob, rows, col0 + BN + tl.arange(0, BN2), M, N,
            stride_rm, stride_om, ACTIVATION, X_SCALE, W_SCALE,
        )  # fmt: skip


@triton.jit
def gemm_reduce(
    x_scale, w_scale, bias, residual, out, partial,
    M, N, stride_rb, stride_rm, stride_ob, stride_om, whole, split,
    BM: tl.constexpr, BN: tl.constexpr, RM: tl.constexpr, GROUP_M: tl.constexpr,
    ACTIVATION: tl.constexpr, X_SCALE: tl.constexpr, W_SCALE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Adds the slices of a split tile, always in the same order, and finishes it.

    A program does RM rows of a tile: grid (tiles that were split, chunks of RM rows, batch).
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    index = tl.program_id(0)
    chunk = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    tile_m, tile_n = tile_of(whole + index, tiles_m, tiles_n, GROUP_M)
    inside = chunk * RM * BN + tl.arange(0, RM)[:, None] * BN + tl.arange(0, BN)[None, :]
    slot = (batch * (tiles_m * tiles_n - whole) + index) * split
    at = partial + slot * (BM * BN) + inside
    acc = tl.zeros((RM, BN), dtype=partial.dtype.element_ty)
    for _ in range(split):
        acc += tl.load(at)
        at += BM * BN
    rows = tile_m * BM + chunk * RM + tl.arange(0, RM)
    cols = tile_n * BN + tl.arange(0, BN)
    finish(
        acc, x_scale, w_scale, bias,
        None if residual is None else residual + batch * stride_rb,
        out + batch * stride_ob, rows, cols, M, N, stride_rm, stride_om,
        ACTIVATION, X_SCALE, W_SCALE,
    )  # fmt: skip
