# mypy: ignore-errors
"""Rotation, append and attention of one new token a sequence over few keys: `held`.

All that a program reads of earlier tokens is on its way to registers before the launch in front has
ended; what is left then is a chain of few steps: the query, its products, a softmax over the
program, one more sum. A program has one query's head: the heads that share a key's are few, and
read the same lines of a cache.
"""

import triton
import triton.language as tl

from pumice.operators.decode_attention.kernel_triton import (
    arrive,
    combine_shares,
    inverse_rms,
    rotary_columns,
    rotate_columns,
)


@triton.jit
def _pages(table, first, width, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The blocks of rows first … first + BLOCK_N − 1. Bounded by the table's width, not by the
    context, so that neither waits for the other."""
    block = (first + tl.arange(0, BLOCK_N)) // PAGE
    return tl.load(table + block, mask=block < width, other=0).to(tl.int64)


@triton.jit
def _tile(
    cache, page, stride_b, stride_n, first, end, column,
    D: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """D columns from `column` on of rows first … end − 1 of a sequence, [BLOCK_N, D], zeros behind
    them."""
    n = first + tl.arange(0, BLOCK_N)
    rows = cache + (page * stride_b + n % PAGE * stride_n)[:, None]
    at = rows + (column + tl.arange(0, D))[None, :]
    return tl.load(at, mask=(n < end)[:, None], other=0.0)


@triton.jit
def held(
    q,
    k,
    v,
    positions,
    inv_freq,
    slots,
    k_cache,
    v_cache,
    block_table,
    context_len,
    q_weight,
    k_weight,
    out,
    partial,
    lse,
    counters,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_kb,
    stride_kn,
    stride_kc,
    stride_vb,
    stride_vn,
    stride_vc,
    stride_table,
    stride_ot,
    stride_oh,
    heads,
    splits,
    width,  # of the block table
    scale,  # times log2 e
    eps,
    offset,
    factor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PARTS: tl.constexpr,  # programs that share a head's values, by columns
    AT_ONCE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    EARLY: tl.constexpr,  # 0, 1: launches behind may begin with this one, 2: before it
):
    if EARLY == 2:
        tl.extra.cuda.gdc_launch_dependents()
    COLUMNS: tl.constexpr = D // PARTS
    pid = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    head = pid % heads
    split = pid // heads % splits
    sequence = (pid // heads // splits).to(tl.int64)
    kv_head = head // GROUP
    context = tl.load(context_len + sequence)
    cached = tl.maximum(context - 1, 0)
    table = block_table + sequence * stride_table
    if lse is None:  # one share
        first = 0
        active = 1
        page = _pages(table, first, width, PAGE, BLOCK_N)
        end = cached
    else:
        share = tl.maximum(tl.cdiv(tl.cdiv(cached, splits), BLOCK_N), 1) * BLOCK_N
        active = tl.maximum(tl.cdiv(cached, share), 1)
        if split >= active:
            return
        first = split * share
        page = _pages(table, first, width, PAGE, BLOCK_N)
        end = tl.minimum(first + share, cached)
    own = (split == active - 1) & (context > 0)  # has the new key, too
    k_head = k_cache + kv_head.to(tl.int64) * stride_kc
    v_head = v_cache + kv_head.to(tl.int64) * stride_vc
    e = part * COLUMNS
    keys = _tile(k_head, page, stride_kb, stride_kn, first, end, 0, D, PAGE, BLOCK_N)
    values = _tile(v_head, page, stride_vb, stride_vn, first, end, e, COLUMNS, PAGE, BLOCK_N)
    d = tl.arange(0, D)
    position = tl.load(positions + sequence)
    slot = tl.load(slots + sequence).to(tl.int64)
    partner, cosine, sine = rotary_columns(inv_freq, position, d, factor, HALF, INTERLEAVED)
    if EARLY:
        # Of the launch in front of this one come q, k and v; all else is older.
        tl.extra.cuda.gdc_wait()
    if EARLY == 1:
        tl.extra.cuda.gdc_launch_dependents()
    one = tl.arange(0, 1)[:, None]
    q_row = q + sequence * stride_qt + head * stride_qh + one
    k_row = k + sequence * stride_kt + kv_head * stride_kh + one
    inside = one == 0
    inverse_q = 1.0
    inverse_k = 1.0
    if q_weight is not None:
        inverse_q = inverse_rms(q_row, inside, eps, D, D)
        inverse_k = inverse_rms(k_row, inside & own, eps, D, D)
    query = rotate_columns(
        q_row, inside, q_weight, inverse_q, d, partner, cosine, sine, offset, D
    ).to(q.dtype.element_ty)
    new = rotate_columns(
        k_row, inside & own, k_weight, inverse_k, d, partner, cosine, sine, offset, D
    ).to(q.dtype.element_ty)
    mine = e + tl.arange(0, COLUMNS)
    value = tl.load(v + sequence * stride_vt + kv_head * stride_vh + mine, mask=own & (mine < D),
                    other=0.0)  # fmt: skip
    query = query.to(tl.float32) * scale
    logit = tl.where(own, tl.sum(tl.sum(query * new.to(tl.float32), 1), 0), -1e30)
    column = first + tl.arange(0, BLOCK_N)
    s = tl.sum(keys.to(tl.float32) * query, 1)
    s = tl.where(column < end, s, -1e30)
    maximum = tl.maximum(tl.max(s, 0), logit)
    p = tl.where(column < end, tl.exp2(s - maximum), 0.0)
    weight = tl.where(own, tl.exp2(logit - maximum), 0.0)
    total = tl.sum(p, 0) + weight
    acc = tl.sum(p[:, None] * values.to(tl.float32), 0) + weight * value.to(tl.float32)
    for start in range(first + BLOCK_N, end, BLOCK_N):
        page = _pages(table, start, width, PAGE, BLOCK_N)
        keys = _tile(k_head, page, stride_kb, stride_kn, start, end, 0, D, PAGE, BLOCK_N)
        values = _tile(v_head, page, stride_vb, stride_vn, start, end, e, COLUMNS, PAGE, BLOCK_N)
        column = start + tl.arange(0, BLOCK_N)
        s = tl.where(column < end, tl.sum(keys.to(tl.float32) * query, 1), -1e30)
        top = tl.maximum(tl.max(s, 0), maximum)
        p = tl.where(column < end, tl.exp2(s - top), 0.0)
        less = tl.exp2(maximum - top)
        total = total * less + tl.sum(p, 0)
        acc = acc * less + tl.sum(p[:, None] * values.to(tl.float32), 0)
        maximum = top
    appended = own & (slot >= 0) & (head % GROUP == 0)
    k_slot = k_head + slot // PAGE * stride_kb + slot % PAGE * stride_kn
    v_slot = v_head + slot // PAGE * stride_vb + slot % PAGE * stride_vn
    tl.store(k_slot + d[None, :], new, mask=inside & appended & (part == 0))
    tl.store(v_slot + mine, value, mask=appended & (mine < D))
    some = total > 0.0
    acc = acc / tl.where(some, total, 1.0)
    o_row = out + sequence * stride_ot + head * stride_oh
    if lse is None:
        tl.store(o_row + mine, acc.to(out.dtype.element_ty))
    elif active == 1:
        tl.store(o_row + mine, acc.to(out.dtype.element_ty))
    else:
        row = (sequence * heads + head) * splits
        seen = tl.where(some, maximum + tl.log2(tl.where(some, total, 1.0)), float("-inf"))
        lse_row = lse + ((sequence * heads + head) * PARTS + part) * splits
        tl.store(partial + (row + split) * D + mine, acc)
        tl.store(lse_row + split, seen)
        counter = counters + (sequence * heads + head) * PARTS + part
        if arrive(counter, 1, 32) == active - 1:
            tl.store(counter, 0)  # for the next launch: nobody else comes
            combine_shares(
                partial + row * D, lse_row, o_row, stride_oh, active, splits, e,
                1, D, 1, COLUMNS, AT_ONCE,
            )  # fmt: skip
