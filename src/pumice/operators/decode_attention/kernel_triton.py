# mypy: ignore-errors
"""Rotation, append and attention of one new token a sequence, its keys split over programs (Dao et
al., Flash-Decoding, 2023), which the last one to finish combines.

Nobody reads the new key and value from memory here: the program that attends to them makes them
itself, and its write to the cache is for later launches.
"""

import triton
import triton.language as tl

from pumice.operators.flash_attention.softmax_triton import cap_logits
from pumice.operators.fused_w4.prefetch_triton import to_cache_line
from pumice.operators.paged_attention.kernel_triton import attend_pages
from pumice.operators.rope_cache.kernel_triton import cos_sin
from pumice.operators.triton.float8_triton import narrow, widen


@triton.jit
def rotary_columns(inv_freq, position, d, factor, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Column d of a rotated head is x[d]·cosine + x[partner]·sine. Columns behind the rotated ones
    are their own partners, with a cosine of 1 and a sine of 0."""
    if INTERLEAVED:
        pair = d // 2
        second = d % 2 == 1
        partner = d + tl.where(second, -1, 1)
    else:
        second = d >= HALF
        pair = tl.where(second, d - HALF, d)
        partner = d + tl.where(second, -HALF, HALF)
    rotated = d < 2 * HALF
    frequency = tl.load(inv_freq + pair, mask=rotated, other=0.0)
    cosine, sine = cos_sin(position.to(tl.float32), frequency)
    cosine = tl.where(rotated, cosine * factor, 1.0)
    sine = tl.where(rotated, tl.where(second, sine, -sine) * factor, 0.0)
    return tl.where(rotated, partner, d), cosine, sine


@triton.jit
def inverse_rms(rows, inside, eps, D: tl.constexpr, BLOCK: tl.constexpr):
    """rows: pointers [heads, 1] → 1 / sqrt(mean of squares + eps) [heads, 1]."""
    d = tl.arange(0, BLOCK)
    x = tl.load(rows + d[None, :], mask=inside & (d < D)[None, :], other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None]


@triton.jit
def rotate_columns(
    rows, inside, weight, inverse, d, partner, cosine, sine, offset, D: tl.constexpr
):
    """Columns d of the heads at rows [heads, 1], normalized and rotated, float32."""
    real = inside & (d < D)[None, :]
    x = tl.load(rows + d[None, :], mask=real, other=0.0).to(tl.float32)
    y = tl.load(rows + partner[None, :], mask=real, other=0.0).to(tl.float32)
    if weight is not None:
        w = tl.load(weight + d, mask=d < D, other=0.0).to(tl.float32) + offset
        u = tl.load(weight + partner, mask=d < D, other=0.0).to(tl.float32) + offset
        x = x * inverse * w[None, :]
        y = y * inverse * u[None, :]
    return x * cosine[None, :] + y * sine[None, :]


@triton.jit
def to_cache(x, cache, scale, LIMIT: tl.constexpr, BITWISE: tl.constexpr):
    """A new row as the cache holds it: divided by its scale and clamped where the type has a
    LIMIT."""
    if LIMIT > 0:
        x = tl.minimum(tl.maximum(x / scale, -LIMIT), LIMIT)
    return narrow(x, cache.dtype.element_ty, BITWISE)


@triton.jit
def ask_for_keys(
    k_head, v_head, table, stride_kb, stride_kn, stride_vb, stride_vn, begin, end,
    D: tl.constexpr, DV: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The first keys and values of a share to the second-level cache; waits for nothing but the
    table."""
    n = begin + tl.arange(0, BLOCK_N)
    page = tl.load(table + n // PAGE, mask=n < end, other=0).to(tl.int64)
    known = tl.minimum(n, tl.maximum(end - 1, 0))
    LINE: tl.constexpr = 1024 // k_head.dtype.element_ty.primitive_bitwidth  # elements
    K_LINES: tl.constexpr = triton.next_power_of_2((D + LINE - 1) // LINE)
    V_LINES: tl.constexpr = triton.next_power_of_2((DV + LINE - 1) // LINE)
    line = tl.minimum(tl.arange(0, K_LINES) * LINE, D - 1)
    to_cache_line(k_head + (page * stride_kb + known % PAGE * stride_kn)[:, None] + line[None, :])
    line = tl.minimum(tl.arange(0, V_LINES) * LINE, DV - 1)
    to_cache_line(v_head + (page * stride_vb + known % PAGE * stride_vn)[:, None] + line[None, :])


@triton.jit
def arrive(counter, ARRIVALS: tl.constexpr, WAVE: tl.constexpr):
    """Counts this program's arrivals; returns how many came before its last one. All its stores
    come before them, and what the others stored is visible behind them."""
    if ARRIVALS == 1:
        tl.debug_barrier()
        before = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
        tl.debug_barrier()
    else:
        # Where a barrier does not wait for stores on their way, each wave releases its own.
        thread = tl.arange(0, ARRIVALS * WAVE)
        first = thread % WAVE == 0
        one = tl.full([ARRIVALS * WAVE], 1, tl.int32)
        each = tl.atomic_add(counter + thread * 0, one, mask=first, sem="acq_rel", scope="gpu")
        before = tl.max(tl.where(first, each, 0), 0)
    return before


@triton.jit
def combine_shares(
    partial,
    lse,
    out,
    stride_oh,
    active,
    splits,
    first_v,
    GROUP: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_V: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """partial [GROUP, splits, Dv] and lse [GROUP, splits] of the first `active` shares → out
    [GROUP, Dv]. The order is that of the shares, so equal inputs give equal bits."""
    s = tl.arange(0, AT_ONCE)
    g = tl.arange(0, BLOCK_G)
    e = first_v + tl.arange(0, BLOCK_V)
    top = tl.full([BLOCK_G], -1e30, tl.float32)
    total = tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_V], tl.float32)
    for first in range(0, active, AT_ONCE):
        row = (g * splits)[None, :] + (first + s)[:, None]
        real = (first + s < active)[:, None] & (g < GROUP)[None, :]
        value = tl.load(lse + row, mask=real, other=float("-inf"))
        mask = real[:, :, None] & (e < DV)[None, None, :]
        part = tl.load(partial + (row * DV)[:, :, None] + e[None, None, :], mask=mask, other=0.0)
        new = tl.maximum(top, tl.max(value, 0))
        weight = tl.exp2(value - new[None, :])
        factor = tl.exp2(top - new)
        acc = acc * factor[:, None] + tl.sum(part * weight[:, :, None], 0)
        total = total * factor + tl.sum(weight, 0)
        top = new
    result = (acc / tl.where(total > 0.0, total, 1.0)[:, None]).to(out.dtype.element_ty)
    mask = (g < GROUP)[:, None] & (e < DV)[None, :]
    tl.store(out + (g * stride_oh)[:, None] + e[None, :], result, mask=mask)


@triton.jit
def decode_attention(
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
    k_scale,
    v_scale,
    sinks,
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
    stride_k_scale,
    stride_v_scale,
    stride_ot,
    stride_oh,
    sequences,
    kv_heads,
    splits,
    scale,
    cap,
    left,
    eps,
    offset,
    factor,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    HALF: tl.constexpr,
    PAGE: tl.constexpr,
    PARTS: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_G: tl.constexpr,
    AT_ONCE: tl.constexpr,
    ARRIVALS: tl.constexpr,
    WAVE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    BITWISE: tl.constexpr,
    EARLY: tl.constexpr,
    FETCH: tl.constexpr,
):
    """A program takes one share of a sequence's keys for the heads of one group, and one of PARTS
    slices of the values' columns.

    Shares are even and as many as the context needs: programs beyond them leave at once. Without
    `lse` there is one share. With `counters` (zero before and after) the last program of a group to
    finish combines its shares; without them `combine_splits` does so in a launch of its own.
    """
    LOG2_E: tl.constexpr = 1.4426950408889634
    pid = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    first_v = part * BLOCK_V
    kv_head = pid % kv_heads
    split = pid // kv_heads % splits
    sequence = (pid // kv_heads // splits).to(tl.int64)
    context = tl.load(context_len + sequence)
    cached = tl.maximum(context - 1, 0)  # the keys before the new one
    begin = 0
    if WINDOW:
        begin = tl.maximum(cached - left, 0) // BLOCK_N * BLOCK_N
    share = tl.maximum(tl.cdiv(tl.cdiv(cached - begin, splits), BLOCK_N), 1) * BLOCK_N
    active = tl.maximum(tl.cdiv(cached - begin, share), 1)

    m = tl.arange(0, BLOCK_M)
    valid = m < GROUP
    head = kv_head * GROUP + m
    group_row = (sequence * kv_heads + kv_head) * GROUP * splits  # of partial and lse
    lse_rows = lse
    if lse is not None:
        lse_rows = lse + part * (sequences * kv_heads * GROUP * splits) + group_row
    if split >= active:
        if lse is not None and counters is None:
            tl.store(lse_rows + m * splits + split, float("-inf") + tl.zeros([BLOCK_M], tl.float32),
                     mask=valid)  # fmt: skip
        return

    own = (split == active - 1) & (context > 0)  # has the new key, too
    d = tl.arange(0, BLOCK_D)
    position = tl.load(positions + sequence)
    slot = tl.load(slots + sequence).to(tl.int64)
    partner, cosine, sine = rotary_columns(inv_freq, position, d, factor, HALF, INTERLEAVED)
    if FETCH:  # earlier steps wrote them
        ask_for_keys(
            k_cache + kv_head.to(tl.int64) * stride_kc, v_cache + kv_head.to(tl.int64) * stride_vc,
            block_table + sequence * stride_table, stride_kb, stride_kn, stride_vb, stride_vn,
            begin + split * share, tl.minimum(begin + split * share + share, cached),
            D, DV, PAGE, BLOCK_N,
        )  # fmt: skip
    if EARLY:
        # Of the launch in front of this one come q, k and v; the step's integers are older.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    q_rows = q + sequence * stride_qt + (head * stride_qh)[:, None]
    one = tl.arange(0, 1)
    k_rows = k + sequence * stride_kt + kv_head * stride_kh + one[:, None]
    inside_q = valid[:, None]
    inside_k = (one == 0)[:, None] & own
    inverse_q = 1.0
    inverse_k = 1.0
    if q_weight is not None:
        inverse_q = inverse_rms(q_rows, inside_q, eps, D, BLOCK_D if BLOCK_R == 0 else 2 * BLOCK_D)
    if k_weight is not None:
        inverse_k = inverse_rms(k_rows, inside_k, eps, D, BLOCK_D if BLOCK_R == 0 else 2 * BLOCK_D)
    appended = own & (slot >= 0)
    scale_k = 1.0
    scale_v = 1.0
    if k_scale is not None:
        scale_k = tl.load(k_scale + kv_head * stride_k_scale)
    if v_scale is not None:
        scale_v = tl.load(v_scale + kv_head * stride_v_scale)
    k_slot = k_cache + slot // PAGE * stride_kb + slot % PAGE * stride_kn + kv_head * stride_kc
    v_slot = v_cache + slot // PAGE * stride_vb + slot % PAGE * stride_vn + kv_head * stride_vc

    q_main = rotate_columns(
        q_rows, inside_q, q_weight, inverse_q, d, partner, cosine, sine, offset, D
    ).to(q.dtype.element_ty)
    k_main = rotate_columns(
        k_rows, inside_k, k_weight, inverse_k, d, partner, cosine, sine, offset, D
    )
    k_main = to_cache(k_main, k_cache, scale_k, LIMIT, BITWISE)
    first_part = appended & (part == 0)
    tl.store(k_slot + d[None, :], k_main, mask=first_part & (d < D)[None, :])
    q_rest = q_main
    k_rest = k_main
    if BLOCK_R > 0:
        r = BLOCK_D + tl.arange(0, BLOCK_R)
        partner, cosine, sine = rotary_columns(inv_freq, position, r, factor, HALF, INTERLEAVED)
        q_rest = rotate_columns(
            q_rows, inside_q, q_weight, inverse_q, r, partner, cosine, sine, offset, D
        ).to(q.dtype.element_ty)
        k_rest = rotate_columns(
            k_rows, inside_k, k_weight, inverse_k, r, partner, cosine, sine, offset, D
        )
        k_rest = to_cache(k_rest, k_cache, scale_k, LIMIT, BITWISE)
        tl.store(k_slot + r[None, :], k_rest, mask=first_part & (r < D)[None, :])

    if LIMIT > 0:
        # 8-bit floats widen to float16 in half the instructions of bfloat16, so q joins them there,
        # scaled to at most 1.
        peak = tl.max(tl.abs(q_main.to(tl.float32)))
        if BLOCK_R > 0:
            peak = tl.maximum(peak, tl.max(tl.abs(q_rest.to(tl.float32))))
        peak = tl.where(peak > 0.0, peak, 1.0)
        q_main = (q_main.to(tl.float32) / peak).to(tl.float16)
        if BLOCK_R > 0:
            q_rest = (q_rest.to(tl.float32) / peak).to(tl.float16)
        scale = scale * peak
    scale = scale * scale_k

    # The new key starts the running softmax.
    logit = tl.sum(q_main.to(tl.float32) * widen(k_main, tl.float32, BITWISE), 1)
    if BLOCK_R > 0:
        logit += tl.sum(q_rest.to(tl.float32) * widen(k_rest, tl.float32, BITWISE), 1)
    if CAP:
        logit = cap_logits(logit, scale, cap)
    else:
        logit = logit * scale
    maximum = tl.where(own, logit, -1e30)
    weight = tl.where(own, tl.full([BLOCK_M], 1.0, tl.float32), 0.0)
    total = weight
    if sinks is not None:
        sink = tl.load(sinks + head, mask=valid, other=0.0).to(tl.float32) * LOG2_E
        sink = tl.where(split == 0, sink, -1e30)
        maximum = tl.maximum(maximum, sink)
        weight = tl.where(own, tl.exp2(logit - maximum), 0.0)
        total = weight + tl.where(split == 0, tl.exp2(sink - maximum), 0.0)
    e = first_v + tl.arange(0, BLOCK_V)
    v_row = v + sequence * stride_vt + kv_head * stride_vh
    value = tl.load(v_row + e, mask=own & (e < DV), other=0.0).to(tl.float32)
    value = to_cache(value, v_cache, scale_v, LIMIT, BITWISE)
    tl.store(v_slot + e, value, mask=appended & (e < DV))
    acc = weight[:, None] * widen(value, tl.float32, BITWISE)[None, :]

    first = begin + split * share
    nowhere = tl.zeros([BLOCK_M], tl.int32)
    acc, maximum, total = attend_pages(
        acc, maximum, total, q_main, q_rest,
        k_cache + kv_head.to(tl.int64) * stride_kc, v_cache + kv_head.to(tl.int64) * stride_vc,
        block_table + sequence * stride_table, stride_kb, stride_kn, stride_vb, stride_vn,
        first, tl.minimum(first + share, cached), nowhere + (cached - left), nowhere + cached,
        scale, cap, first_v,
        D, DV, PAGE, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_V, True, WINDOW, CAP, BITWISE,
    )  # fmt: skip

    some = total > 0.0
    acc = acc * (scale_v / tl.where(some, total, 1.0))[:, None]
    mask = valid[:, None] & (e < DV)[None, :]
    o_group = out + sequence * stride_ot + kv_head.to(tl.int64) * GROUP * stride_oh
    o_rows = o_group + (m * stride_oh)[:, None] + e[None, :]
    if lse is None:
        tl.store(o_rows, acc.to(out.dtype.element_ty), mask=mask)
    elif counters is not None and active == 1:
        tl.store(o_rows, acc.to(out.dtype.element_ty), mask=mask)
    else:
        p_rows = partial + group_row * DV
        tl.store(p_rows + ((m * splits + split) * DV)[:, None] + e[None, :], acc, mask=mask)
        seen = tl.where(some, maximum + tl.log2(tl.where(some, total, 1.0)), float("-inf"))
        tl.store(lse_rows + m * splits + split, seen, mask=valid)
        if counters is not None:
            counter = counters + (sequence * kv_heads + kv_head) * PARTS + part
            if arrive(counter, ARRIVALS, WAVE) == active * ARRIVALS - 1:
                tl.store(counter, 0)  # for the next launch: nobody else comes
                combine_shares(
                    p_rows, lse_rows, o_group, stride_oh, active, splits, first_v,
                    GROUP, DV, BLOCK_G, BLOCK_V, AT_ONCE,
                )  # fmt: skip
