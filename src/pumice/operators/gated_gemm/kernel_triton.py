# mypy: ignore-errors
"""Tiles of gate and up side by side: x is read once, and only their product is written."""

import triton
import triton.language as tl

from pumice.operators.gemm.common_triton import activate, spread, tile_of
from pumice.operators.triton.float8_triton import decode_e4m3


@triton.jit
def gated_tile(
    x, w, x_scale, w_scale, out, M, F, K, stride_xm, stride_wn, stride_om,
    stride_sm, stride_sk, stride_tn, stride_tk,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr,
    DIES: tl.constexpr, EVEN_K: tl.constexpr, ACTIVATION: tl.constexpr, BLOCKS: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """One program, one tile [BM, BN] of the output. BLOCKS: scales as in `fp8_tile`."""
    GROUP: tl.constexpr = 128
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(F, BN)
    pid = spread(tl.program_id(0), tiles_m * tiles_n, DIES)
    tile_m, tile_n = tile_of(pid, tiles_m, tiles_n, GROUP_M)
    row0 = tile_m * BM
    col0 = tile_n * BN
    rows = tl.minimum(tl.arange(0, BM), M - 1 - row0)
    cols = tl.minimum(tl.arange(0, BN), F - 1 - col0)
    ks = tl.arange(0, BK)
    x_at = x + row0.to(tl.int64) * stride_xm
    gate_at = w + col0.to(tl.int64) * stride_wn
    up_at = gate_at + tl.cast(F, tl.int64) * stride_wn
    x_tile = rows[:, None] * stride_xm + ks[None, :]
    w_tile = cols[None, :] * stride_wn + ks[:, None]
    if BLOCKS:
        last = tl.cdiv(K, GROUP) - 1
        s_at = x_scale + (row0 + rows).to(tl.int64) * stride_sm
        gate_t = w_scale + (col0 // GROUP) * stride_tn
        up_t = w_scale + ((F + col0) // GROUP) * stride_tn
        s = tl.load(s_at)
        t = tl.load(gate_t)
        u = tl.load(up_t)
    gate = tl.zeros((BM, BN), dtype=tl.float32)
    up = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        if EVEN_K:
            a = tl.load(x_at + x_tile)
            b = tl.load(gate_at + w_tile)
            c = tl.load(up_at + w_tile)
        else:
            a = tl.load(x_at + x_tile, mask=ks[None, :] < K - k, other=0.0)
            b = tl.load(gate_at + w_tile, mask=ks[:, None] < K - k, other=0.0)
            c = tl.load(up_at + w_tile, mask=ks[:, None] < K - k, other=0.0)
        if UPCAST:
            a = decode_e4m3(a)
            b = decode_e4m3(b)
            c = decode_e4m3(c)
        if BLOCKS:
            ahead = tl.minimum((k + BK) // GROUP, last)
            s_ahead = tl.load(s_at + ahead * stride_sk)
            t_ahead = tl.load(gate_t + ahead * stride_tk)
            u_ahead = tl.load(up_t + ahead * stride_tk)
            gate += tl.dot(a, b) * (s * t)[:, None]
            up += tl.dot(a, c) * (s * u)[:, None]
            s = s_ahead
            t = t_ahead
            u = u_ahead
        else:
            gate = tl.dot(a, b, gate)
            up = tl.dot(a, c, up)
        x_at += BK
        gate_at += BK
        up_at += BK
    y = (activate(gate, ACTIVATION) * up).to(out.dtype.element_ty)
    rows = row0 + tl.arange(0, BM)
    cols = col0 + tl.arange(0, BN)
    at = out + rows.to(tl.int64)[:, None] * stride_om + cols[None, :]
    tl.store(at, y, mask=(rows < M)[:, None] & (cols < F)[None, :])
