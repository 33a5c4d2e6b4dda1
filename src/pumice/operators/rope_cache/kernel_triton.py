# mypy: ignore-errors
"""Rotary embedding of q and k, their normalization, and the append to the cache: a program takes
some heads of one token."""

import triton
import triton.language as tl

from pumice.operators.triton.float8_triton import narrow


@triton.jit
def cos_sin(position, frequency):
    """cos and sin of position · frequency, for positions that float32 holds exactly.

    A frequency in turns is a sum of two float32 numbers. Their fused products with the position,
    less whole turns, keep the fraction of a turn exact to float32 even where the angle is many
    turns. Nothing here depends on a product's own rounding, which compilers fuse away.
    """
    TURN_HIGH: tl.constexpr = 0.15915494  # 1 / 2π in float32, and what is missing
    TURN_LOW: tl.constexpr = 6.4206383e-09
    high = frequency * TURN_HIGH
    low = tl.fma(frequency, TURN_HIGH, -high) + frequency * TURN_LOW
    fraction = tl.fma(position, high, -tl.floor(position * high))
    turns = tl.fma(position, low, fraction)
    quarter = tl.floor(turns * 4.0 + 0.5)
    x = (turns - quarter * 0.25) * 6.2831855
    xx = x * x
    sine = x * (1.0 + xx * (-0.16666667 + xx * (8.3333310e-3 + xx * -1.9840874e-4)))
    cosine = 1.0 + xx * (-0.5 + xx * (4.1666638e-2 + xx * (-1.3888378e-3 + xx * 2.4760495e-5)))
    turn = quarter.to(tl.int32) & 3
    odd = (turn & 1) == 1
    first = tl.where(odd, sine, cosine)
    second = tl.where(odd, cosine, sine)
    cosine = tl.where((turn == 1) | (turn == 2), -first, first)
    sine = tl.where(turn >= 2, -second, second)
    return cosine, sine


@triton.jit
def rotate_heads(
    x,
    weight,
    frequencies,
    position,
    inside,
    eps,
    offset,
    factor,
    HALF: tl.constexpr,
    D: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """x: pointers to heads [heads, 1] → (rotated columns as one or two tiles, the columns behind)
    in float32. The columns of the two tiles are those that `columns` gives."""
    first, second = columns(HALF, BLOCK_P, INTERLEAVED)
    p = tl.arange(0, BLOCK_P)
    real = (p < HALF)[None, :]
    mask = inside[:, None] & real
    if INTERLEAVED:
        pairs = tl.arange(0, 2 * BLOCK_P)
        both = tl.load(
            x + pairs[None, :], mask=inside[:, None] & (pairs < 2 * HALF)[None, :], other=0.0
        )
        both = tl.reshape(both.to(tl.float32), [x.shape[0], BLOCK_P, 2])
        a, b = tl.split(both)
    else:
        a = tl.load(x + first[None, :], mask=mask, other=0.0).to(tl.float32)
        b = tl.load(x + second[None, :], mask=mask, other=0.0).to(tl.float32)
    behind = 2 * HALF + tl.arange(0, BLOCK_R)
    c = tl.zeros([x.shape[0], BLOCK_R], tl.float32)
    if D > 2 * HALF:
        mask = inside[:, None] & (behind < D)[None, :]
        c = tl.load(x + behind[None, :], mask=mask, other=0.0).to(tl.float32)
    if weight is not None:
        squares = tl.sum(a * a, 1) + tl.sum(b * b, 1) + tl.sum(c * c, 1)
        inverse = tl.rsqrt(squares / D + eps)[:, None]
        wa = tl.load(weight + first, mask=p < HALF, other=0.0).to(tl.float32) + offset
        wb = tl.load(weight + second, mask=p < HALF, other=0.0).to(tl.float32) + offset
        a = a * inverse * wa[None, :]
        b = b * inverse * wb[None, :]
        if D > 2 * HALF:
            wc = tl.load(weight + behind, mask=behind < D, other=0.0).to(tl.float32) + offset
            c = c * inverse * wc[None, :]
    frequency = tl.load(frequencies + p, mask=p < HALF, other=0.0)
    cosine, sine = cos_sin(position.to(tl.float32), frequency)
    cosine = (cosine * factor)[None, :]
    sine = (sine * factor)[None, :]
    return a * cosine - b * sine, b * cosine + a * sine, c


@triton.jit
def columns(HALF: tl.constexpr, BLOCK_P: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Columns of a pair's two elements: (2i, 2i + 1) as in GPT-J, (i, i + half) as in GPT-NeoX."""
    p = tl.arange(0, BLOCK_P)
    if INTERLEAVED:
        first = 2 * p
        second = 2 * p + 1
    else:
        first = p
        second = HALF + p
    return first, second


@triton.jit
def store_heads(
    out,
    a,
    b,
    c,
    inside,
    scale,
    LIMIT: tl.constexpr,
    BITWISE: tl.constexpr,
    HALF: tl.constexpr,
    D: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Writes what `rotate_heads` gave, times `scale`, clamped where the type has a LIMIT."""
    kind = out.dtype.element_ty
    if LIMIT > 0:
        a = tl.minimum(tl.maximum(a * scale, -LIMIT), LIMIT)
        b = tl.minimum(tl.maximum(b * scale, -LIMIT), LIMIT)
        c = tl.minimum(tl.maximum(c * scale, -LIMIT), LIMIT)
    if INTERLEAVED:
        pairs = tl.arange(0, 2 * BLOCK_P)
        both = tl.reshape(tl.join(a, b), [a.shape[0], 2 * BLOCK_P])
        mask = inside[:, None] & (pairs < 2 * HALF)[None, :]
        tl.store(out + pairs[None, :], narrow(both, kind, BITWISE), mask=mask)
    else:
        p = tl.arange(0, BLOCK_P)
        mask = inside[:, None] & (p < HALF)[None, :]
        tl.store(out + p[None, :], narrow(a, kind, BITWISE), mask=mask)
        tl.store(out + HALF + p[None, :], narrow(b, kind, BITWISE), mask=mask)
    if D > 2 * HALF:
        behind = 2 * HALF + tl.arange(0, BLOCK_R)
        mask = inside[:, None] & (behind < D)[None, :]
        tl.store(out + behind[None, :], narrow(c, kind, BITWISE), mask=mask)


@triton.jit
def rope_cache(
    q,
    k,
    v,
    positions,
    inv_freq,
    slots,
    k_cache,
    v_cache,
    q_weight,
    k_weight,
    k_scale,
    v_scale,
    q_out,
    k_out,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_qot,
    stride_qoh,
    stride_kot,
    stride_koh,
    stride_kb,
    stride_kn,
    stride_kc,
    stride_vb,
    stride_vn,
    stride_vc,
    stride_k_scale,
    stride_v_scale,
    heads,
    kv_heads,
    q_blocks,
    kv_blocks,
    eps,
    offset,
    factor,
    HALF: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
    LIMIT: tl.constexpr,
    BITWISE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """The second grid axis counts blocks of heads: those of q, then of k, then of v."""
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    h = tl.arange(0, BLOCK_H)
    if part < q_blocks:
        head = part * BLOCK_H + h
        inside = head < heads
        position = tl.load(positions + token)
        source = q + token * stride_qt + (head * stride_qh)[:, None]
        a, b, c = rotate_heads(
            source, q_weight, inv_freq, position, inside, eps, offset, factor,
            HALF, D, BLOCK_P, BLOCK_R, INTERLEAVED,
        )  # fmt: skip
        result = q_out + token * stride_qot + (head * stride_qoh)[:, None]
        store_heads(result, a, b, c, inside, 1.0, 0, False, HALF, D, BLOCK_P, BLOCK_R, INTERLEAVED)
    elif part < q_blocks + kv_blocks:
        head = (part - q_blocks) * BLOCK_H + h
        inside = head < kv_heads
        position = tl.load(positions + token)
        k_source = k + token * stride_kt + (head * stride_kh)[:, None]
        a, b, c = rotate_heads(
            k_source, k_weight, inv_freq, position, inside, eps, offset, factor,
            HALF, D, BLOCK_P, BLOCK_R, INTERLEAVED,
        )  # fmt: skip
        if k_out is not None:
            k_result = k_out + token * stride_kot + (head * stride_koh)[:, None]
            store_heads(
                k_result, a, b, c, inside, 1.0, 0, False, HALF, D, BLOCK_P, BLOCK_R, INTERLEAVED
            )
        slot = tl.load(slots + token).to(tl.int64)
        scale = tl.full([BLOCK_H, 1], 1.0, tl.float32)
        if k_scale is not None:
            scale = 1.0 / tl.load(k_scale + head * stride_k_scale, mask=inside, other=1.0)[:, None]
        k_page = k_cache + slot // PAGE * stride_kb + slot % PAGE * stride_kn
        k_rows = k_page + (head * stride_kc)[:, None]
        store_heads(
            k_rows, a, b, c, inside & (slot >= 0), scale, LIMIT, BITWISE,
            HALF, D, BLOCK_P, BLOCK_R, INTERLEAVED,
        )  # fmt: skip
    else:
        head = (part - q_blocks - kv_blocks) * BLOCK_H + h
        slot = tl.load(slots + token).to(tl.int64)
        inside = (head < kv_heads) & (slot >= 0)
        e = tl.arange(0, BLOCK_V)
        mask = inside[:, None] & (e < DV)[None, :]
        v_source = v + token * stride_vt + (head * stride_vh)[:, None]
        value = tl.load(v_source + e[None, :], mask=mask, other=0.0)
        if LIMIT > 0:
            value = value.to(tl.float32)
            if v_scale is not None:
                value = (
                    value
                    / tl.load(v_scale + head * stride_v_scale, mask=inside, other=1.0)[:, None]
                )
            value = tl.minimum(tl.maximum(value, -LIMIT), LIMIT)
        v_page = v_cache + slot // PAGE * stride_vb + slot % PAGE * stride_vn
        v_rows = v_page + (head * stride_vc)[:, None]
        value = narrow(value, v_cache.dtype.element_ty, BITWISE)
        tl.store(v_rows + e[None, :], value, mask=mask)
