# mypy: ignore-errors
"""Flash attention for Hopper (Shah et al., FlashAttention-3, arXiv:2407.08608), in Gluon.

One warp copies keys and values into rings of shared memory; two warp groups own 64 rows of queries
each. They issue the product q·kᵀ of the next block before the softmax of this one, and take turns
at the matrix units, so that one's products run beside the other's exponentials. A program takes
tile after tile from a counter, so that tiles of unlike length spread evenly; copies of the next
tile run during the last products of the one before. Key blocks go from the last to the first: masks
come first.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from pumice.operators.flash_attention.hopper_loads_triton import load_tiles
from pumice.operators.flash_attention.hopper_tiles_triton import (
    COLUMNS,
    CONSUMERS,
    advance,
    fresh,
    hear,
    kept,
    key_range,
)


@gluon.jit
def capped(s, scale, cap, CAP: gl.constexpr):
    if CAP:
        s = cap - 2.0 * cap / (gl.exp2(s * scale) + 1.0)
    return s


@gluon.jit
def hide(s, start, row_first, row_last, WINDOW: gl.constexpr):
    """Logits of keys start …, those that a row does not see at minus infinity."""
    n = gl.arange(0, s.shape[1], gl.SliceLayout(0, s.type.layout))
    # Fresh: worked out beforehand, the masks would be kept as bits until they are needed.
    visible = n[None, :] < fresh(row_last - start)[:, None]
    if WINDOW:
        visible = visible & (n[None, :] >= fresh(row_first - start)[:, None])
    return gl.where(visible, s, float("-inf"))


@gluon.jit
def softmax(s, maximum, scale, CAP: gl.constexpr):
    """One block of logits: (weights, factor of what was accumulated, maximum, sums of each lane's
    own columns [64, 4])."""
    COUNT: gl.constexpr = s.shape[1] // 4
    # Four chains of maxima in place of a long one.
    most = gl.max(gl.max(s.reshape([64, 4, COUNT]), 1), 1)
    most = gl.convert_layout(most, maximum.type.layout)
    if CAP:
        new = gl.maximum(maximum, most)
        weights = gl.exp2(s - new[:, None])
    else:
        new = gl.maximum(maximum, most * scale)
        weights = gl.exp2(s * scale - new[:, None])
    parts = gl.sum(gl.sum(weights.reshape([64, s.shape[1] // 8, 4, 2]), 3), 1)
    return weights, gl.exp2(maximum - new), new, parts


@gluon.constexpr_function
def _turn(what, barrier):
    """A named barrier of both groups' 256 threads, one of which only arrives."""
    return f"bar.{what} {barrier}, 256; mov.b32 $0, $1;"


@gluon.jit
def await_turn(PART: gl.constexpr):
    """Until the other group has issued its products."""
    lane = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise(
        _turn("sync", 8 + PART), "=r,r", [lane], gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def give_turn(PART: gl.constexpr):
    """To the other group."""
    lane = gl.arange(0, 128, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise(
        _turn("arrive", 9 - PART), "=r,r", [lane], gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def attend_blocks(
    weights, factor, acc, maximum, total, begin, end, whole_begin, whole_end, q_rows,
    k_ring, v_ring, k_full, k_empty, v_full, v_empty, k_slot, k_phase, v_slot, v_phase,
    scale, cap, row_first, row_last,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, WINDOW: gl.constexpr, BOUNDED: gl.constexpr,
    CAP: gl.constexpr, PART: gl.constexpr, p_layout: gl.constexpr, o_layout: gl.constexpr,
):  # fmt: skip
    """Keys of blocks end − 1 down to `begin`, each with the values of the block before it: its
    `weights` were not multiplied yet, and `acc` was not scaled by its `factor`."""
    s_layout: gl.constexpr = weights.type.layout
    for i in range(begin, end):
        block = begin + end - 1 - i
        # Carried as float32: 16-bit values would be taken apart and put together again.
        p = gl.convert_layout(weights.to(v_ring.dtype), p_layout)
        mbarrier.wait(k_full.index(k_slot), k_phase)
        await_turn(PART)
        s = multiply_keys(q_rows, k_ring.index(k_slot), BLOCK_N, s_layout)
        acc = acc * gl.convert_layout(factor, gl.SliceLayout(1, o_layout))[:, None]
        mbarrier.wait(v_full.index(v_slot), v_phase)
        acc = warpgroup_mma(p, v_ring.index(v_slot), acc, is_async=True)
        give_turn(PART)
        s = warpgroup_mma_wait(1, deps=(s,))
        mbarrier.arrive(k_empty.index(k_slot), count=1)
        k_slot, k_phase = advance(k_slot, k_phase, STAGES)
        s = capped(s, scale, cap, CAP)
        # One loop with a branch: where blocks in part and whole ones had a loop each, the assembler
        # (of CUDA 12.8) let the second begin with descriptors that only the first had made.
        if WINDOW or BOUNDED:
            if (block >= whole_end) | (block < whole_begin):
                s = hide(s, block * BLOCK_N, row_first, row_last, WINDOW)
        weights, factor, maximum, parts = softmax(s, maximum, scale, CAP)
        wide = gl.convert_layout(factor, gl.SliceLayout(1, total.type.layout))
        total = total * wide[:, None] + parts
        # Passes at once. Its branch keeps the assembler from moving the exponentials behind the
        # wait for the product that they run beside.
        mbarrier.wait(v_full.index(v_slot), v_phase)
        acc, p, weights = warpgroup_mma_wait(0, deps=(acc, p, weights))
        mbarrier.arrive(v_empty.index(v_slot), count=1)
        v_slot, v_phase = advance(v_slot, v_phase, STAGES)
    return weights, factor, acc, maximum, total, k_slot, k_phase, v_slot, v_phase


@gluon.jit
def multiply_keys(q_rows, keys, BLOCK_N: gl.constexpr, s_layout: gl.constexpr):
    """q·kᵀ, begun."""
    zero = gl.zeros([64, BLOCK_N], gl.float32, s_layout)
    return warpgroup_mma(q_rows, keys.permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def attend_tiles(
    given,
    PART: gl.constexpr, SINKS: gl.constexpr, LSE: gl.constexpr,
    DV: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    Q_STAGES: gl.constexpr, BLOCK_S: gl.constexpr, PAGE: gl.constexpr, WINDOW: gl.constexpr,
    BOUNDED: gl.constexpr, CAP: gl.constexpr,
):  # fmt: skip
    """A computing warp group: 64 rows, number PART, of all tiles of this program."""
    (sinks, out, lse, stride_ot, stride_oh, stride_lh, scale, cap, left, right, notes, q_ring,
     k_ring, v_ring, told, q_full, q_empty, k_full, k_empty, v_full, v_empty) = given  # fmt: skip
    ROWS: gl.constexpr = 64 * CONSUMERS
    LOG2_E: gl.constexpr = 1.4426950408889634
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DV, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    row_layout: gl.constexpr = gl.SliceLayout(1, s_layout)
    store_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // DV, DV // 8], [4, 1], [1, 0])
    m = gl.arange(0, 64, row_layout)
    k_slot = 0
    k_phase = 0
    v_slot = 0
    v_phase = 0
    q_slot = 0
    q_phase = 0
    if PART == 1:
        give_turn(PART)
    mbarrier.wait(told.index(q_slot), q_phase)
    found, first, queries, keys, q_start, head = hear(notes, q_slot)
    mbarrier.wait(q_full.index(q_slot), q_phase, pred=found)
    mbarrier.wait(k_full.index(k_slot), k_phase, pred=found)
    begun = multiply_keys(q_ring.index(PART), k_ring.index(k_slot), BLOCK_N, s_layout)
    s = warpgroup_mma_wait(0, deps=(begun,))
    while found:
        q_rows = q_ring.index(q_slot * CONSUMERS + PART)
        reach = kept(right, q_start)
        begin, end, _, _ = key_range(
            first, ROWS, queries, keys, left, reach, BLOCK_N, WINDOW, BOUNDED
        )
        first += 64 * PART
        _, _, whole_begin, whole_end = key_range(
            first, 64, queries, keys, left, reach, BLOCK_N, WINDOW, BOUNDED
        )
        position = fresh(first + m + (keys - queries))
        row_first = position - left
        row_last = gl.minimum(position + reach + 1, keys) if BOUNDED else position * 0 + keys
        if SINKS:
            maximum = gl.load(sinks + head + m * 0) * LOG2_E
        else:
            maximum = gl.full([64], -1e30, gl.float32, row_layout)
        acc = gl.zeros([64, DV], gl.float32, o_layout)
        mbarrier.arrive(k_empty.index(k_slot), count=1)
        k_slot, k_phase = advance(k_slot, k_phase, STAGES)
        s = hide(capped(s, scale, cap, CAP), (end - 1) * BLOCK_N, row_first, row_last, WINDOW)
        weights, factor, maximum, total = softmax(s, maximum, scale, CAP)
        weights, factor, acc, maximum, total, k_slot, k_phase, v_slot, v_phase = attend_blocks(
            weights, factor, acc, maximum, total, begin, end - 1, whole_begin, whole_end, q_rows,
            k_ring, v_ring, k_full, k_empty, v_full, v_empty, k_slot, k_phase, v_slot, v_phase,
            scale, cap, row_first, row_last,
            BLOCK_N, STAGES, WINDOW, BOUNDED, CAP, PART, p_layout, o_layout,
        )  # fmt: skip
        mbarrier.arrive(q_empty.index(q_slot), count=1)
        q_slot, q_phase = advance(q_slot, q_phase, Q_STAGES)
        p = gl.convert_layout(weights.to(out.dtype.element_ty), p_layout)
        acc = acc * gl.convert_layout(factor, gl.SliceLayout(1, o_layout))[:, None]
        mbarrier.wait(v_full.index(v_slot), v_phase)
        acc = warpgroup_mma(p, v_ring.index(v_slot), acc, is_async=True)
        # The first product of the next tile runs while this one is written. After the last tile
        # it multiplies what lies there, and nobody looks at the result.
        mbarrier.wait(told.index(q_slot), q_phase)
        found, first_next, queries_next, keys_next, q_start_next, head_next = hear(notes, q_slot)
        mbarrier.wait(q_full.index(q_slot), q_phase, pred=found)
        mbarrier.wait(k_full.index(k_slot), k_phase, pred=found)
        begun = multiply_keys(
            q_ring.index(q_slot * CONSUMERS + PART), k_ring.index(k_slot), BLOCK_N, s_layout
        )
        acc, p = warpgroup_mma_wait(1, deps=(acc, p))
        mbarrier.arrive(v_empty.index(v_slot), count=1)
        v_slot, v_phase = advance(v_slot, v_phase, STAGES)

        total = gl.convert_layout(gl.sum(total, 1), row_layout)
        if SINKS:
            total += gl.exp2(gl.load(sinks + head + m * 0) * LOG2_E - maximum)
        divisor = gl.where(total == 0.0, 1.0, total)
        factor = gl.convert_layout(1.0 / divisor, gl.SliceLayout(1, o_layout))
        rows = (acc * factor[:, None]).to(out.dtype.element_ty)
        rows = gl.convert_layout(rows, store_layout)
        r = fresh(gl.arange(0, 64, gl.SliceLayout(1, store_layout)))
        e = gl.arange(0, DV, gl.SliceLayout(0, store_layout))
        o_rows = out + (q_start + first).to(gl.int64) * kept(stride_ot, q_start)
        o_rows += head.to(gl.int64) * kept(stride_oh, q_start)
        inside = (first + r < queries)[:, None] & (e >= 0)[None, :]
        gl.store(o_rows + (r[:, None] * stride_ot + e[None, :]), rows, mask=inside)
        if LSE:
            value = gl.where(total == 0.0, float("-inf"), (maximum + gl.log2(divisor)) / LOG2_E)
            l_rows = lse + head.to(gl.int64) * kept(stride_lh, q_start) + q_start + first
            gl.store(l_rows + m, value, mask=first + m < queries)
        # Not carried into the next round unfinished: copies of its registers would come too early.
        s = warpgroup_mma_wait(0, deps=(begun,))
        first = first_next
        queries = queries_next
        keys = keys_next
        q_start = q_start_next
        head = head_next


@gluon.jit
def flash_attention_hopper(
    counters, q, k, v, table, cu_seqlens_q, cu_seqlens_k, sinks, out, lse,
    stride_qt, stride_qh, stride_kb, stride_kt, stride_kh, stride_vb, stride_vt, stride_vh,
    stride_ot, stride_oh, stride_lh, stride_table,
    queries, heads, keys, kv_heads,
    sequences, tiles, total, group, section, share, scale, cap, left, right,
    D: gl.constexpr, DV: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, Q_STAGES: gl.constexpr, BLOCK_S: gl.constexpr, PAGE: gl.constexpr,
    REGISTERS: gl.constexpr, WINDOW: gl.constexpr, BOUNDED: gl.constexpr, CAP: gl.constexpr,
):  # fmt: skip
    SINKS: gl.constexpr = sinks is not None
    LSE: gl.constexpr = lse is not None
    dtype: gl.constexpr = q.dtype.element_ty
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_ring = gl.allocate_shared_memory(dtype, [Q_STAGES * CONSUMERS, 64, D], tile)
    k_ring = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, D], tile)
    v_ring = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, DV], tile)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    notes = gl.allocate_shared_memory(gl.int32, [6 * Q_STAGES, 32], plain)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    told = gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], barrier)
    q_full = gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], barrier)
    q_empty = gl.allocate_shared_memory(gl.int64, [Q_STAGES, 1], barrier)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    for i in gl.static_range(Q_STAGES):
        mbarrier.init(told.index(i), count=1)
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=CONSUMERS)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=CONSUMERS)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=CONSUMERS)
    fence_async_shared()
    sinks_or_q = sinks if SINKS else q
    lse_or_q = lse if LSE else q
    order = (
        counters, cu_seqlens_q, cu_seqlens_k, sequences, tiles, total, group, section, share,
    )  # fmt: skip
    three: gl.constexpr = gl.NVMMASharedLayout(128, 16, 3)
    q_rows = tma.make_tensor_descriptor(
        q, [queries, heads, D], [stride_qt, stride_qh, 1], [64, 1, COLUMNS], three
    )
    if PAGE > 0:
        four: gl.constexpr = gl.NVMMASharedLayout(128, 16, 4)
        box: gl.constexpr = [1, min(PAGE, BLOCK_N), 1, COLUMNS]
        k_rows = tma.make_tensor_descriptor(
            k, [keys, PAGE, kv_heads, D], [stride_kb, stride_kt, stride_kh, 1], box, four
        )
        v_rows = tma.make_tensor_descriptor(
            v, [keys, PAGE, kv_heads, DV], [stride_vb, stride_vt, stride_vh, 1], box, four
        )
    else:
        block: gl.constexpr = [BLOCK_N, 1, COLUMNS]
        k_rows = tma.make_tensor_descriptor(
            k, [keys, kv_heads, D], [stride_kt, stride_kh, 1], block, three
        )
        v_rows = tma.make_tensor_descriptor(
            v, [keys, kv_heads, DV], [stride_vt, stride_vh, 1], block, three
        )
    load = (
        order, q_rows, k_rows, v_rows, v, table if PAGE > 0 else cu_seqlens_k,
        stride_vb, stride_vt, stride_vh, stride_table, left, right,
        notes, q_ring, k_ring, v_ring, told, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    )  # fmt: skip
    attend = (
        sinks_or_q, out, lse_or_q, stride_ot, stride_oh, stride_lh, scale, cap, left, right,
        notes, q_ring, k_ring, v_ring, told, q_full, q_empty, k_full, k_empty, v_full, v_empty,
    )  # fmt: skip
    # Constants stay constants in tuples only where they are written down.
    gl.warp_specialize(
        [
            (attend_tiles, (attend, 0, SINKS, LSE, DV, BLOCK_N, STAGES, Q_STAGES, BLOCK_S, PAGE,
                            WINDOW, BOUNDED, CAP)),
            (attend_tiles, (attend, 1, SINKS, LSE, DV, BLOCK_N, STAGES, Q_STAGES, BLOCK_S, PAGE,
                            WINDOW, BOUNDED, CAP)),
            (load_tiles, (load, D, DV, BLOCK_N, STAGES, Q_STAGES, BLOCK_S, PAGE, WINDOW, BOUNDED)),
        ],
        [4, 1],
        [REGISTERS, 504 - 2 * REGISTERS],
    )  # fmt: skip
