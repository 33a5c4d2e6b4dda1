# mypy: ignore-errors
"""Flash attention (Dao, arXiv:2307.08691): one program a tile of query rows, keys in blocks."""

import triton
import triton.language as tl

from pumice.operators.flash_attention.softmax_triton import find_sequence, softmax_step


@triton.jit
def attend(
    acc,
    maximum,
    total,
    q,
    q_rest,
    k_base,
    v_base,
    stride_k,
    stride_v,
    begin,
    end,
    keys,
    row_first,
    row_last,
    scale,
    cap,
    first_v,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
):
    """Key blocks begin … end (multiples of BLOCK_N, but end) into the running softmax.

    MASKED: a row sees the keys row_first … row_last − 1 only, and the last block may be partial.
    """
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    e = first_v + tl.arange(0, BLOCK_V)
    k_offsets = n[:, None] * stride_k + d[None, :]
    v_offsets = n[:, None] * stride_v + e[None, :]
    if BLOCK_R > 0:
        r = BLOCK_D + tl.arange(0, BLOCK_R)
        rest_offsets = n[:, None] * stride_k + r[None, :]
    k_tile = k_base + tl.cast(begin, tl.int64) * stride_k
    v_tile = v_base + tl.cast(begin, tl.int64) * stride_v
    for start in range(begin, end, BLOCK_N):
        inside = (start + n) < keys
        if MASKED:
            k = tl.load(k_tile + k_offsets, mask=inside[:, None], other=0.0)
        else:
            k = tl.load(k_tile + k_offsets)
        s = tl.dot(q, tl.trans(k))
        if BLOCK_R > 0:
            if MASKED:
                mask = inside[:, None] & (r < D)[None, :]
                k_rest = tl.load(k_tile + rest_offsets, mask=mask, other=0.0)
            elif BLOCK_D + BLOCK_R == D:
                k_rest = tl.load(k_tile + rest_offsets)
            else:
                k_rest = tl.load(k_tile + rest_offsets, mask=(r < D)[None, :], other=0.0)
            s = tl.dot(q_rest, tl.trans(k_rest), s)
        visible = True
        if MASKED:
            column = (start + n)[None, :]
            visible = column < row_last[:, None]
            if WINDOW:
                visible = visible & (column >= row_first[:, None])
        p, factor, maximum, total = softmax_step(
            s, maximum, total, scale, cap, visible, MASKED, CAP
        )
        acc = acc * factor[:, None]
        if MASKED:
            mask = inside[:, None] & (e < DV)[None, :]
            v = tl.load(v_tile + v_offsets, mask=mask, other=0.0)
        elif DV % BLOCK_V == 0:
            v = tl.load(v_tile + v_offsets)
        else:
            v = tl.load(v_tile + v_offsets, mask=(e < DV)[None, :], other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc)
        k_tile += BLOCK_N * stride_k
        v_tile += BLOCK_N * stride_v
    return acc, maximum, total


@triton.jit
def flash_attention(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    sinks,
    out,
    lse,
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kh,
    stride_vt,
    stride_vh,
    stride_ot,
    stride_oh,
    stride_lh,
    sequences,
    tiles,
    kv_heads,
    group,
    scale,
    cap,
    left,
    right,
    D: tl.constexpr,
    DV: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_S: tl.constexpr,
    PACK: tl.constexpr,
    WINDOW: tl.constexpr,
    BOUNDED: tl.constexpr,
    CAP: tl.constexpr,
):
    """Row m of a tile is query m // PACK under head m % PACK of a group: PACK is 1, or all heads of
    a group, so that few queries still fill a tile. D = BLOCK_D + rest. A program makes one of PARTS
    slices of the values' columns."""
    ROWS: tl.constexpr = BLOCK_M // PACK
    LOG2_E: tl.constexpr = 1.4426950408889634
    pid = tl.program_id(0) // PARTS
    first_v = tl.program_id(0) % PARTS * BLOCK_V
    heads = kv_heads * (group // PACK)
    tile = pid // heads
    if BOUNDED:
        # Under a causal mask later tiles see more keys: the long ones start first.
        tile = tiles - 1 - tile
    # Neighbours are programs of different groups: those of one group meet in one cache.
    head = pid % heads
    kv_head = head % kv_heads
    first_head = kv_head * group + head // kv_heads

    sequence = find_sequence(cu_seqlens_q, tile, sequences, ROWS, BLOCK_S)
    q_start = tl.load(cu_seqlens_q + sequence)
    queries = tl.load(cu_seqlens_q + sequence + 1) - q_start
    first = (tile - q_start // ROWS - sequence) * ROWS
    if first >= queries:
        return
    k_start = tl.load(cu_seqlens_k + sequence)
    keys = tl.load(cu_seqlens_k + sequence + 1) - k_start

    m = tl.arange(0, BLOCK_M)
    row = m // PACK  # of the tile
    row_head = first_head + m % PACK
    valid = (first + row < queries) & (row < ROWS)
    d = tl.arange(0, BLOCK_D)
    q_tile = q + (q_start + first).to(tl.int64) * stride_qt
    q_rows = q_tile + (row * stride_qt + row_head.to(tl.int64) * stride_qh)[:, None]
    queries_main = tl.load(q_rows + d[None, :], mask=valid[:, None], other=0.0)
    queries_rest = queries_main
    if BLOCK_R > 0:
        r = BLOCK_D + tl.arange(0, BLOCK_R)
        mask = valid[:, None] & (r < D)[None, :]
        queries_rest = tl.load(q_rows + r[None, :], mask=mask, other=0.0)

    # The last query meets the last key. A row sees the keys row_first … row_last − 1.
    position = first + row + (keys - queries)
    lowest = first + (keys - queries)
    highest = tl.minimum(first + ROWS, queries) - 1 + (keys - queries)
    row_first = position
    row_last = position * 0 + keys
    begin = 0
    whole_begin = 0
    whole_end = keys
    end = keys
    if BOUNDED:
        row_last = tl.minimum(position + right + 1, keys)
        end = tl.minimum(highest + right + 1, keys)
        whole_end = tl.minimum(tl.maximum(lowest + right + 1, 0), keys)
    if WINDOW:
        row_first = position - left
        begin = tl.maximum(lowest - left, 0) // BLOCK_N * BLOCK_N
        whole_begin = tl.cdiv(tl.maximum(highest - left, 0), BLOCK_N) * BLOCK_N
    whole_end = tl.maximum(whole_end // BLOCK_N * BLOCK_N, whole_begin)

    if sinks is not None:
        maximum = tl.load(sinks + row_head, mask=valid, other=0.0).to(tl.float32) * LOG2_E
        total = tl.full([BLOCK_M], 1.0, tl.float32)
    else:
        maximum = tl.full([BLOCK_M], -1e30, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)

    k_base = k + k_start.to(tl.int64) * stride_kt + kv_head.to(tl.int64) * stride_kh
    v_base = v + k_start.to(tl.int64) * stride_vt + kv_head.to(tl.int64) * stride_vh
    if WINDOW:
        acc, maximum, total = attend(
            acc, maximum, total, queries_main, queries_rest, k_base, v_base, stride_kt, stride_vt,
            begin, tl.minimum(whole_begin, end), keys, row_first, row_last, scale, cap, first_v,
            D, DV, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_V, True, WINDOW, CAP,
        )  # fmt: skip
    acc, maximum, total = attend(
        acc, maximum, total, queries_main, queries_rest, k_base, v_base, stride_kt, stride_vt,
        whole_begin, whole_end, keys, row_first, row_last, scale, cap, first_v,
        D, DV, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_V, False, WINDOW, CAP,
    )  # fmt: skip
    acc, maximum, total = attend(
        acc, maximum, total, queries_main, queries_rest, k_base, v_base, stride_kt, stride_vt,
        whole_end, end, keys, row_first, row_last, scale, cap, first_v,
        D, DV, BLOCK_N, BLOCK_D, BLOCK_R, BLOCK_V, True, WINDOW, CAP,
    )  # fmt: skip

    e = first_v + tl.arange(0, BLOCK_V)
    divisor = tl.where(total == 0.0, 1.0, total)
    acc = acc * (1.0 / divisor)[:, None]
    o_tile = out + (q_start + first).to(tl.int64) * stride_ot
    o_rows = o_tile + (row * stride_ot + row_head.to(tl.int64) * stride_oh)[:, None]
    mask = valid[:, None] & (e < DV)[None, :]
    tl.store(o_rows + e[None, :], acc.to(out.dtype.element_ty), mask=mask)
    if lse is not None:
        value = tl.where(total == 0.0, float("-inf"), (maximum + tl.log2(divisor)) / LOG2_E)
        l_rows = lse + row_head.to(tl.int64) * stride_lh + q_start + first + row
        tl.store(l_rows, value, mask=valid & (first_v == 0))
