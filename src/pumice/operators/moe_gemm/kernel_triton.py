# mypy: ignore-errors
"""The experts' two products over entries in sorted blocks, and the sum over a token's experts."""

import triton
import triton.language as tl

from pumice.operators.gemm.common_triton import activate, tile_of
from pumice.operators.triton.float8_triton import narrow


@triton.jit
def experts_up(
    x, w, x_scale, w_scale, h, h_scale, order, owners, used,
    ENTRIES, F, K, blocks, stride_xm, stride_we, stride_wn,
    stride_sm, stride_sk, stride_te, stride_tn, stride_tk,
    TOPK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP_M: tl.constexpr, EVEN_K: tl.constexpr, ACTIVATION: tl.constexpr, BLOCKS: tl.constexpr,
    WIDE: tl.constexpr, BITWISE: tl.constexpr,
):  # fmt: skip
    """h[entry] = activation(x·gateᵀ)·(x·upᵀ) of the entry's token and expert.

    BLOCKS: 8-bit floats with block scales, BN = 128; h is then quantized too, a scale a row of
    128. h: [ENTRIES, F] contiguous; h_scale [ENTRIES, F/128]. WIDE: offsets in x pass 2³¹.
    """
    GROUP: tl.constexpr = 128
    tile_m, tile_n = tile_of(tl.program_id(0), blocks, tl.cdiv(F, BN), GROUP_M)
    if tile_m * BM >= tl.load(used):
        return
    entries = tl.load(order + tile_m * BM + tl.arange(0, BM))
    valid = entries < ENTRIES
    tokens = tl.minimum(entries, ENTRIES - 1) // TOPK
    expert = tl.load(owners + tile_m).to(tl.int64)
    col0 = tile_n * BN
    cols = tl.minimum(tl.arange(0, BN), F - 1 - col0)
    ks = tl.arange(0, BK)
    x_tile = (tokens.to(tl.int64) if WIDE else tokens)[:, None] * stride_xm + ks[None, :]
    gate_at = w + expert * stride_we + col0.to(tl.int64) * stride_wn
    up_at = gate_at + tl.cast(F, tl.int64) * stride_wn
    w_tile = cols[None, :] * stride_wn + ks[:, None]
    if BLOCKS:
        last = tl.cdiv(K, GROUP) - 1
        s_at = x_scale + tokens.to(tl.int64) * stride_sm
        gate_t = w_scale + expert * stride_te + (col0 // GROUP) * stride_tn
        up_t = w_scale + expert * stride_te + ((F + col0) // GROUP) * stride_tn
        s = tl.load(s_at)
        t = tl.load(gate_t)
        u = tl.load(up_t)
    gate = tl.zeros((BM, BN), dtype=tl.float32)
    up = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        if EVEN_K:
            a = tl.load(x + x_tile)
            b = tl.load(gate_at + w_tile)
            c = tl.load(up_at + w_tile)
        else:
            a = tl.load(x + x_tile, mask=ks[None, :] < K - k, other=0.0)
            b = tl.load(gate_at + w_tile, mask=ks[:, None] < K - k, other=0.0)
            c = tl.load(up_at + w_tile, mask=ks[:, None] < K - k, other=0.0)
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
        x += BK
        gate_at += BK
        up_at += BK
    y = activate(gate, ACTIVATION) * up
    cols = col0 + tl.arange(0, BN)
    if BLOCKS:
        LARGEST: tl.constexpr = 240.0 if h.dtype.element_ty == tl.float8e4b8 else 448.0
        scale = tl.maximum(tl.max(tl.abs(y), 1), 1e-10) / LARGEST
        y = y / scale[:, None]
        to = h_scale + entries.to(tl.int64) * (F // GROUP) + tile_n
        tl.store(to, scale, mask=valid)
    to = h + entries.to(tl.int64)[:, None] * F + cols[None, :]
    y = narrow(y, h.dtype.element_ty, BITWISE)
    tl.store(to, y, mask=valid[:, None] & (cols < F)[None, :])


@triton.jit
def experts_down(
    h, w, h_scale, w_scale, weights, y, order, owners, used,
    ENTRIES, N, F, blocks, stride_we, stride_wn, stride_te, stride_tn, stride_tk,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, BLOCKS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """y[entry] = weight·h[entry]·downᵀ. y: [ENTRIES, N] contiguous, N the model's width."""
    GROUP: tl.constexpr = 128
    tile_m, tile_n = tile_of(tl.program_id(0), blocks, tl.cdiv(N, BN), GROUP_M)
    if tile_m * BM >= tl.load(used):
        return
    entries = tl.load(order + tile_m * BM + tl.arange(0, BM))
    valid = entries < ENTRIES
    rows = tl.minimum(entries, ENTRIES - 1)
    expert = tl.load(owners + tile_m).to(tl.int64)
    col0 = tile_n * BN
    cols = tl.minimum(tl.arange(0, BN), N - 1 - col0)
    ks = tl.arange(0, BK)
    h_tile = (rows.to(tl.int64) if WIDE else rows)[:, None] * F + ks[None, :]
    w_at = w + expert * stride_we + col0.to(tl.int64) * stride_wn
    w_tile = cols[None, :] * stride_wn + ks[:, None]
    if BLOCKS:
        last = tl.cdiv(F, GROUP) - 1
        s_at = h_scale + rows.to(tl.int64) * (F // GROUP)
        t_at = w_scale + expert * stride_te + (col0 // GROUP) * stride_tn
        s = tl.load(s_at)
        t = tl.load(t_at)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, F, BK):
        if EVEN_K:
            a = tl.load(h + h_tile)
            b = tl.load(w_at + w_tile)
        else:
            a = tl.load(h + h_tile, mask=ks[None, :] < F - k, other=0.0)
            b = tl.load(w_at + w_tile, mask=ks[:, None] < F - k, other=0.0)
        if BLOCKS:
            ahead = tl.minimum((k + BK) // GROUP, last)
            s_ahead = tl.load(s_at + ahead)
            t_ahead = tl.load(t_at + ahead * stride_tk)
            acc += tl.dot(a, b) * (s * t)[:, None]
            s = s_ahead
            t = t_ahead
        else:
            acc = tl.dot(a, b, acc)
        h += BK
        w_at += BK
    acc *= tl.load(weights + entries, mask=valid, other=0.0)[:, None]
    cols = col0 + tl.arange(0, BN)
    to = y + entries.to(tl.int64)[:, None] * N + cols[None, :]
    tl.store(to, acc.to(y.dtype.element_ty), mask=valid[:, None] & (cols < N)[None, :])


@triton.jit
def experts_sum(
    y, ids, out, places, weights, E, N, stride_om, TOPK: tl.constexpr, BN: tl.constexpr
):
    """out[token] = the sum of its entries, in order; those without an expert here count nothing.
    places (None: y is [entries, N]): where in y an entry's row is, still to be weighted."""
    token = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BN,), dtype=tl.float32)
    for j in tl.static_range(TOPK):
        entry = token * TOPK + j
        expert = tl.load(ids + entry)
        here = (expert >= 0) & (expert < E)
        row = entry
        if places is not None:
            row = tl.load(places + entry, mask=here, other=0).to(tl.int64)
        part = tl.load(y + row * N + cols, mask=(cols < N) & here, other=0.0).to(tl.float32)
        if weights is not None:
            part *= tl.load(weights + entry)
        acc += part
    tl.store(out + token * stride_om + cols, acc.to(out.dtype.element_ty), mask=cols < N)
