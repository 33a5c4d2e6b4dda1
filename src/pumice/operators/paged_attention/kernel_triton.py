# mypy: ignore-errors
"""Attention over a paged cache (Kwon et al., arXiv:2309.06180), its keys split over programs where
queries are few (Dao et al., Flash-Decoding, 2023), and the reduction of such parts."""

import triton
import triton.language as tl

from pumice.operators.flash_attention.softmax_triton import find_sequence, softmax_step
from pumice.operators.triton.float8_triton import widen


@triton.jit
def attend_pages(
    acc,
    maximum,
    total,
    q,
    q_rest,
    k_head,
    v_head,
    table,
    stride_kb,
    stride_kn,
    stride_vb,
    stride_vn,
    begin,
    end,
    row_first,
    row_last,
    scale,
    cap,
    first_v,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    BITWISE: tl.constexpr,
):
    """Keys begin … end − 1 of a sequence into the running softmax; begin is a multiple of BLOCK_N.

    Block numbers are read one tile ahead, so that the loads that need them do not wait for them.
    """
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    e = first_v + tl.arange(0, BLOCK_V)
    r = BLOCK_D + tl.arange(0, BLOCK_R if BLOCK_R > 0 else 1)
    if PAGE % BLOCK_N == 0:
        page = tl.load(table + begin // PAGE, mask=begin < end, other=0)
    elif BLOCK_N % PAGE == 0:  # what does not change with the tile is computed once
        page = tl.load(table + begin // PAGE + n // PAGE, mask=begin + n < end, other=0)
    else:
        page = tl.load(table + (begin + n) // PAGE, mask=begin + n < end, other=0)
    for start in range(begin, end, BLOCK_N):
        column = start + n
        inside = column < end
        following = start + BLOCK_N
        if PAGE % BLOCK_N == 0:
            k_tile = k_head + page.to(tl.int64) * stride_kb + (start % PAGE) * stride_kn
            v_tile = v_head + page.to(tl.int64) * stride_vb + (start % PAGE) * stride_vn
            k_rows = k_tile + (n * stride_kn)[:, None]
            v_rows = v_tile + (n * stride_vn)[:, None]
            page = tl.load(table + following // PAGE, mask=following < end, other=0)
        else:
            block = page.to(tl.int64)
            if BLOCK_N % PAGE == 0:
                offset = n % PAGE
                index = following // PAGE + n // PAGE
            else:
                offset = column % PAGE
                index = (following + n) // PAGE
            k_rows = k_head + (block * stride_kb + offset * stride_kn)[:, None]
            v_rows = v_head + (block * stride_vb + offset * stride_vn)[:, None]
            page = tl.load(table + index, mask=following + n < end, other=0)
        if MASKED:
            k = tl.load(k_rows + d[None, :], mask=inside[:, None], other=0.0)
        else:
            k = tl.load(k_rows + d[None, :])
        s = tl.dot(q, tl.trans(widen(k, q.dtype, BITWISE)))
        if BLOCK_R > 0:
            mask = (r < D)[None, :]
            if MASKED:
                mask = mask & inside[:, None]
            k_rest = tl.load(k_rows + r[None, :], mask=mask, other=0.0)
            s = tl.dot(q_rest, tl.trans(widen(k_rest, q.dtype, BITWISE)), s)
        visible = True
        if MASKED:
            visible = column[None, :] < row_last[:, None]
            if WINDOW:
                visible = visible & (column[None, :] >= row_first[:, None])
        p, factor, maximum, total = softmax_step(
            s, maximum, total, scale, cap, visible, MASKED, CAP
        )
        acc = acc * factor[:, None]
        if MASKED:
            mask = inside[:, None] & (e < DV)[None, :]
            v = tl.load(v_rows + e[None, :], mask=mask, other=0.0)
        elif DV % BLOCK_V == 0:
            v = tl.load(v_rows + e[None, :])
        else:
            v = tl.load(v_rows + e[None, :], mask=(e < DV)[None, :], other=0.0)
        acc = tl.dot(p.to(q.dtype), widen(v, q.dtype, BITWISE), acc)
    return acc, maximum, total


@triton.jit
def used_tiles(starts, sequences, tiles, ROWS: tl.constexpr, BLOCK_S: tl.constexpr):
    """Tiles up to the last sequence that has queries: `find_sequence` gives those behind it to
    sequences without any. All of them where BLOCK_S is 0."""
    count = tiles
    if BLOCK_S > 0:
        s = tl.arange(0, BLOCK_S)
        end = tl.load(starts + sequences)
        first = tl.load(starts + s, mask=s < sequences, other=0)
        count = end // ROWS + tl.sum(((first < end) & (s < sequences)).to(tl.int32), 0)
    return count


@triton.jit
def paged_attention(
    q,
    k_cache,
    v_cache,
    block_table,
    context_len,
    query_start,
    k_scale,
    v_scale,
    sinks,
    out,
    lse,
    stride_qt,
    stride_qh,
    stride_kb,
    stride_kn,
    stride_kh,
    stride_vb,
    stride_vn,
    stride_vh,
    stride_table,
    stride_k_scale,
    stride_v_scale,
    stride_ot,
    stride_oh,
    stride_os,
    stride_lt,
    stride_lh,
    sequences,
    tiles,
    kv_heads,
    splits,
    scale,
    cap,
    left,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_S: tl.constexpr,
    SPARE: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    BITWISE: tl.constexpr,
):
    """Row m of a tile is query m // GROUP under head m % GROUP of a group. Without `query_start` a
    sequence has one query. With `lse` a program takes one part of the keys, and writes its average
    and the logarithm (base 2) of its softmax's denominator, −∞ where it saw no key. A program
    makes one of PARTS slices of the values' columns."""
    ROWS: tl.constexpr = BLOCK_M // GROUP
    LOG2_E: tl.constexpr = 1.4426950408889634
    # Programs of one sequence's heads run side by side: their keys may be neighbours in memory.
    pid = tl.program_id(0) // PARTS
    first_v = tl.program_id(0) % PARTS * BLOCK_V
    kv_head = pid % kv_heads
    shares = splits
    if query_start is not None:
        used = used_tiles(query_start, sequences, tiles, ROWS, BLOCK_S)
        if SPARE:  # programs of tiles without rows take shares of the others' keys
            shares = tl.minimum(splits, tl.maximum(tiles // tl.maximum(used, 1), 1))
    split = pid // kv_heads % shares
    tile = pid // kv_heads // shares
    if query_start is not None:
        # Of a chunk the last rows see most keys: they start first. What has no rows comes last.
        tile = used - 1 - tile
        if tile < 0:
            return
        sequence = find_sequence(query_start, tile, sequences, ROWS, BLOCK_S)
        q_start = tl.load(query_start + sequence)
        queries = tl.load(query_start + sequence + 1) - q_start
        first = (tile - q_start // ROWS - sequence) * ROWS
        if first >= queries:
            return
    else:
        sequence = tile
        q_start = tile
        queries = 1
        first = 0
    context = tl.load(context_len + sequence)

    m = tl.arange(0, BLOCK_M)
    row = m // GROUP
    row_head = kv_head * GROUP + m % GROUP
    valid = (first + row < queries) & (row < ROWS)
    d = tl.arange(0, BLOCK_D)
    first_head = tl.cast(kv_head * GROUP, tl.int64)
    q_tile = q + tl.cast(q_start + first, tl.int64) * stride_qt + first_head * stride_qh
    q_rows = q_tile + (row * stride_qt + m % GROUP * stride_qh)[:, None]
    queries_main = tl.load(q_rows + d[None, :], mask=valid[:, None], other=0.0)
    queries_rest = queries_main
    if BLOCK_R > 0:
        r = BLOCK_D + tl.arange(0, BLOCK_R)
        mask = valid[:, None] & (r < D)[None, :]
        queries_rest = tl.load(q_rows + r[None, :], mask=mask, other=0.0)

    if k_cache.dtype.element_ty.primitive_bitwidth == 8:
        # 8-bit floats widen to float16 in half the instructions of bfloat16, so q joins them there,
        # scaled to at most 1.
        peak = tl.max(tl.abs(queries_main.to(tl.float32)))
        if BLOCK_R > 0:
            peak = tl.maximum(peak, tl.max(tl.abs(queries_rest.to(tl.float32))))
        peak = tl.where(peak > 0.0, peak, 1.0)
        queries_main = (queries_main.to(tl.float32) / peak).to(tl.float16)
        if BLOCK_R > 0:
            queries_rest = (queries_rest.to(tl.float32) / peak).to(tl.float16)
        scale = scale * peak

    position = first + row + (context - queries)
    lowest = first + (context - queries)
    highest = tl.minimum(first + ROWS, queries) - 1 + (context - queries)
    row_last = tl.minimum(position + 1, context)
    row_first = position - left
    begin = 0
    whole_begin = 0
    end = tl.maximum(tl.minimum(highest + 1, context), 0)
    if WINDOW:
        begin = tl.maximum(lowest - left, 0) // BLOCK_N * BLOCK_N
        whole_begin = tl.cdiv(tl.maximum(highest - left, 0), BLOCK_N) * BLOCK_N
    whole_end = tl.maximum(lowest + 1, 0)
    if lse is not None:
        # An even share of this tile's keys: parts depend on lengths and sizes only.
        share = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), shares), BLOCK_N) * BLOCK_N
        begin += split * share
        end = tl.minimum(begin + share, end)
        whole_begin = tl.maximum(whole_begin, begin)
        whole_end = tl.minimum(whole_end, end)
    whole_end = tl.maximum(whole_end // BLOCK_N * BLOCK_N, whole_begin)

    maximum = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if sinks is not None:
        sink = tl.load(sinks + row_head, mask=valid, other=0.0).to(tl.float32) * LOG2_E
        maximum = tl.where(split == 0, sink, maximum)
        total = tl.where(split == 0, 1.0, total)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    if k_scale is not None:
        scale = scale * tl.load(k_scale + kv_head * stride_k_scale)

    k_head = k_cache + kv_head.to(tl.int64) * stride_kh
    v_head = v_cache + kv_head.to(tl.int64) * stride_vh
    table = block_table + sequence.to(tl.int64) * stride_table
    if query_start is not None:
        if WINDOW:
            acc, maximum, total = attend_pages(
                acc, maximum, total, queries_main, queries_rest, k_head, v_head, table,
                stride_kb, stride_kn, stride_vb, stride_vn,
                begin, tl.minimum(whole_begin, end), row_first, row_last, scale, cap, first_v,
                D, DV, PAGE, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_V, True, WINDOW, CAP, BITWISE,
            )  # fmt: skip
        acc, maximum, total = attend_pages(
            acc, maximum, total, queries_main, queries_rest, k_head, v_head, table,
            stride_kb, stride_kn, stride_vb, stride_vn,
            whole_begin, whole_end, row_first, row_last, scale, cap, first_v,
            D, DV, PAGE, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_V, False, WINDOW, CAP, BITWISE,
        )  # fmt: skip
        acc, maximum, total = attend_pages(
            acc, maximum, total, queries_main, queries_rest, k_head, v_head, table,
            stride_kb, stride_kn, stride_vb, stride_vn,
            whole_end, end, row_first, row_last, scale, cap, first_v,
            D, DV, PAGE, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_V, True, WINDOW, CAP, BITWISE,
        )  # fmt: skip
    else:
        # Memory decides here: masks cost nothing, a second loop would fill its pipeline anew.
        acc, maximum, total = attend_pages(
            acc, maximum, total, queries_main, queries_rest, k_head, v_head, table,
            stride_kb, stride_kn, stride_vb, stride_vn,
            begin, end, row_first, row_last, scale, cap, first_v,
            D, DV, PAGE, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_V, True, WINDOW, CAP, BITWISE,
        )  # fmt: skip

    e = first_v + tl.arange(0, BLOCK_V)
    some = total > 0.0
    factor = 1.0 / tl.where(some, total, 1.0)
    if v_scale is not None:
        factor = factor * tl.load(v_scale + kv_head * stride_v_scale)
    acc = acc * factor[:, None]
    o_tile = out + tl.cast(q_start + first, tl.int64) * stride_ot + split * stride_os
    o_rows = o_tile + first_head * stride_oh + (row * stride_ot + m % GROUP * stride_oh)[:, None]
    mask = valid[:, None] & (e < DV)[None, :]
    if lse is not None:
        tl.store(o_rows + e[None, :], acc, mask=mask & some[:, None])
        nothing = tl.full([BLOCK_M], float("-inf"), tl.float32)
        value = tl.where(some, maximum + tl.log2(tl.where(some, total, 1.0)), nothing)
        l_rows = lse + tl.cast(q_start + first, tl.int64) * stride_lt + row_head * stride_lh
        l_rows += row * stride_lt
        tl.store(l_rows + split, value, mask=valid & (first_v == 0))
        if SPARE:
            for other in range(split + shares, splits, shares):
                tl.store(l_rows + other, nothing, mask=valid & (first_v == 0))
    else:
        tl.store(o_rows + e[None, :], acc.to(out.dtype.element_ty), mask=mask)


@triton.jit
def combine_splits(
    partial,
    lse,
    out,
    stride_ot,
    stride_oh,
    heads,
    splits,
    DV: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_V: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """partial [T, H, splits, Dv] and lse [T, H, splits] → out [T, H, Dv], BLOCK_V columns of a row
    by each program. The sum runs in one fixed order, so equal inputs give equal bits."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK_S)
    e = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    value = tl.load(lse + row * splits + s, mask=s < splits, other=float("-inf"))
    top = tl.max(value, 0)
    weight = tl.exp2(value - tl.where(top == float("-inf"), 0.0, top))
    mask = (weight > 0.0)[:, None] & (e < DV)[None, :]
    part = tl.load(partial + (row * splits + s)[:, None] * DV + e[None, :], mask=mask, other=0.0)
    total = tl.sum(weight, 0)
    result = tl.sum(part * weight[:, None], 0) / tl.where(total > 0.0, total, 1.0)
    o_row = out + row // heads * stride_ot + row % heads * stride_oh
    tl.store(o_row + e, result.to(out.dtype.element_ty), mask=e < DV)
