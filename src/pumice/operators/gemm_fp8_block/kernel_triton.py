# mypy: ignore-errors
"""Tiles of 8-bit floats whose sums leave the matrix unit after every block of K.

Two reasons to leave: block scales differ from block to block, and the accumulator for 8-bit floats
in NVIDIA's matrix units up to sm_90 keeps about 14 bits (DeepSeek-V3, arXiv:2412.19437, 3.3.2).
"""

import triton
import triton.language as tl

from pumice.operators.gemm.common_triton import activate, finish, spread, tile_of
from pumice.operators.triton.float8_triton import decode_e4m3, decode_e4m3_wide


@triton.jit
def fp8_tile(
    x, w, x_scale, w_scale, bias, residual, out, partial,
    M, N, K,
    stride_xb, stride_xm, stride_wb, stride_wn, stride_rb, stride_rm, stride_ob, stride_om,
    stride_sm, stride_sk, stride_tn, stride_tk, whole, split, slice_k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, HALVES: tl.constexpr,
    GROUP_M: tl.constexpr, DIES: tl.constexpr, EVEN_K: tl.constexpr, SPLIT: tl.constexpr,
    ACTIVATION: tl.constexpr, X_SCALE: tl.constexpr, W_SCALE: tl.constexpr,
    BLOCKS: tl.constexpr, UPCAST: tl.constexpr, CARRY: tl.constexpr,
):  # fmt: skip
    """As `gemm_tile`. With BLOCKS, x_scale [M, K/128] has strides sm, sk and w_scale
    [N/128, K/128] has strides tn, tk; BK divides 128 and a part of BN lies in one block.

    HALVES: columns are multiplied in that many parts, one after the other, so that only one part
    has its sums twice (in the matrix unit's registers and in the total). CARRY: offsets grow, not
    the scalar bases; which of the two needs fewer registers depends on the shape.
    """
    PART: tl.constexpr = BN // HALVES
    GROUP: tl.constexpr = 128
    pid = tl.program_id(0)
    batch = tl.program_id(1).to(tl.int64)
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    tile = pid
    k_begin = 0
    k_end = K
    if SPLIT:
        if pid >= whole:
            tail = tiles_m * tiles_n - whole
            tile = whole + (pid - whole) % tail
            k_begin = (pid - whole) // tail * slice_k
            k_end = tl.minimum(K, k_begin + slice_k)
    else:
        tile = spread(pid, tiles_m * tiles_n, DIES)
    tile_m, tile_n = tile_of(tile, tiles_m, tiles_n, GROUP_M)

    row0 = tile_m * BM
    col0 = tile_n * BN
    rows = tl.minimum(tl.arange(0, BM), M - 1 - row0)
    ks = tl.arange(0, BK)
    x_at = x + batch * stride_xb + row0.to(tl.int64) * stride_xm + k_begin
    w_at = w + batch * stride_wb + col0.to(tl.int64) * stride_wn + k_begin
    x_tile = (rows[:, None] * stride_xm + ks[None, :]).to(tl.uint32)
    w_tiles = ()
    accs = ()
    for h in tl.static_range(HALVES):
        cols = tl.minimum(tl.arange(0, PART) + h * PART, N - 1 - col0)
        w_tile = (cols[None, :] * stride_wn + ks[:, None]).to(tl.uint32)
        w_tiles = w_tiles + (w_tile,)  # noqa: RUF005
        accs = accs + (tl.zeros((BM, PART), dtype=tl.float32),)  # noqa: RUF005
    if BLOCKS:
        # Scales are read one block ahead: nothing waits for them.
        last = tl.cdiv(K, GROUP) - 1
        block = tl.minimum(k_begin // GROUP, last)
        s_base = x_scale + row0.to(tl.int64) * stride_sm
        s_at = rows * stride_sm
        t_at = w_scale
        s = tl.load(s_base + block * stride_sk + s_at)
        ts = ()
        for h in tl.static_range(HALVES):
            n_block = tl.minimum(col0 + h * PART, N - 1) // GROUP
            ts = ts + (tl.load(t_at + n_block * stride_tn + block * stride_tk),)  # noqa: RUF005
    for k in range(k_begin, k_end, BK):
        if EVEN_K:
            a = tl.load(x_at + x_tile)
        else:
            a = tl.load(x_at + x_tile, mask=ks[None, :] < K - k, other=0.0)
        if BLOCKS:
            ahead = tl.minimum((k + BK) // GROUP, last)
            s_ahead = tl.load(s_base + ahead * stride_sk + s_at)
        if UPCAST:
            a = decode_e4m3(a)
        new = ()
        ts_ahead = ()
        for h in tl.static_range(HALVES):
            if EVEN_K:
                b = tl.load(w_at + w_tiles[h])
            else:
                b = tl.load(w_at + w_tiles[h], mask=ks[:, None] < K - k, other=0.0)
            if UPCAST:
                b = decode_e4m3(b)
            sums = tl.dot(a, b)
            if BLOCKS:
                n_block = tl.minimum(col0 + h * PART, N - 1) // GROUP
                t = tl.load(t_at + n_block * stride_tn + ahead * stride_tk)
                ts_ahead = ts_ahead + (t,)  # noqa: RUF005
                sums = sums * (s * ts[h])[:, None]
            new = new + (accs[h] + sums,)  # noqa: RUF005
        accs = new
        if BLOCKS:
            s = s_ahead
            ts = ts_ahead
        if CARRY:
            x_tile += BK
            moved = ()
            for h in tl.static_range(HALVES):
                moved = moved + (w_tiles[h] + BK,)  # noqa: RUF005
            w_tiles = moved
        else:
            x_at += BK
            w_at += BK

    rows = row0 + tl.arange(0, BM)
    for h in tl.static_range(HALVES):
        if SPLIT:
            if pid >= whole:
                tail = tiles_m * tiles_n - whole
                slot = (batch * tail + tile - whole) * split + (pid - whole) // tail
                inside = tl.arange(0, BM)[:, None] * BN + tl.arange(0, PART)[None, :] + h * PART
                tl.store(partial + slot * (BM * BN) + inside, accs[h])
        if not SPLIT or pid < whole:
            finish(
                accs[h], x_scale, w_scale, bias,
                None if residual is None else residual + batch * stride_rb,
                out + batch * stride_ob, rows, col0 + h * PART + tl.arange(0, PART), M, N,
                stride_rm, stride_om, ACTIVATION, "none" if BLOCKS else X_SCALE,
                "none" if BLOCKS else W_SCALE,
            )  # fmt: skip


@triton.jit
def fp8_block_gemv(
    x, w, x_scale, w_scale, bias, residual, out,
    N, K, stride_xm, stride_wn, stride_rm, stride_om, stride_sm, stride_sk, stride_tn, stride_tk,
    M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, VECTOR: tl.constexpr,
    EVEN_K: tl.constexpr, ACTIVATION: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """As `gemv`, with block scales: the sum of VECTOR neighbours takes their block's two scales."""
    GROUP: tl.constexpr = 128
    col0 = tl.program_id(0) * BN
    near = tl.minimum(tl.arange(0, BN), N - 1 - col0)
    ks = tl.arange(0, BK)
    w_at = w + col0.to(tl.int64) * stride_wn
    w_tile = near[:, None] * stride_wn + ks[None, :]
    blocks = tl.arange(0, BK // VECTOR) * VECTOR // GROUP
    last = tl.cdiv(K, GROUP) - 1
    t_at = w_scale + (col0 // GROUP) * stride_tn
    zero = tl.zeros((BN, BK // VECTOR), dtype=tl.float32)
    sums = (zero,)
    for _ in tl.static_range(M - 1):
        sums = sums + (zero,)  # noqa: RUF005
    for k in range(0, K, BK):
        if EVEN_K:
            b = tl.load(w_at + w_tile)
        else:
            b = tl.load(w_at + w_tile, mask=ks[None, :] < K - k, other=0.0)
        b = (decode_e4m3_wide(b) if UPCAST else b).to(tl.float32)
        block = tl.minimum(k // GROUP + blocks, last)
        t = tl.load(t_at + block * stride_tk)
        new = ()
        for m in tl.static_range(M):
            if EVEN_K:
                a = tl.load(x + m * stride_xm + k + ks)
            else:
                a = tl.load(x + m * stride_xm + k + ks, mask=ks < K - k, other=0.0)
            s = tl.load(x_scale + m * stride_sm + block * stride_sk) * t
            a = (decode_e4m3_wide(a) if UPCAST else a).to(tl.float32)
            product = tl.reshape(a[None, :] * b, (BN, BK // VECTOR, VECTOR))
            new = new + (sums[m] + tl.sum(product, 2) * s[None, :],)  # noqa: RUF005
        sums = new
        w_at += BK
    cols = col0 + tl.arange(0, BN)
    mask = cols < N
    for m in tl.static_range(M):
        y = tl.sum(sums[m], 1)
        if bias is not None:
            y += tl.load(bias + cols, mask=mask, other=0.0).to(tl.float32)
        y = activate(y, ACTIVATION)
        if residual is not None:
            y += tl.load(residual + m * stride_rm + cols, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + m * stride_om + cols, y.to(out.dtype.element_ty), mask=mask)
