# mypy: ignore-errors
"""Decode attention over a paged latent cache for Hopper, in Gluon.

A program has 64 rows, heads of one sequence, and a share of its keys, 64 at a time. Their output of
64 × 512 numbers takes half of all registers: two warp groups hold a half of its columns each and
multiply weights with latents; a third one multiplies q with the keys and makes the weights, of the
next 64 keys while the others work; a warp copies. A block of latents lies in shared memory once, in
two halves of columns that are given back apart, and is both operands: keys by rows, values by
columns. Blocks go from the last to the first: the ragged one comes first.
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

from pumice.operators.flash_attention.hopper_loads_triton import find_pages, load_rows
from pumice.operators.flash_attention.hopper_tiles_triton import COLUMNS, advance
from pumice.operators.flash_attention.hopper_triton import softmax


@gluon.jit
def copy_latents(
    given,
    HALF: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """The copying warp: queries, then blocks of latents, each half when it is free."""
    (q_rows, cache_rows, table, sequence, head, begin, end, q_left, _, weights, left, right,
     rope, q_full, left_full, right_full, left_empty, right_empty, q_read) = given  # fmt: skip
    blocks = gl.cdiv(end - begin, BLOCK_N)
    if blocks > 0:
        load_rows(q_rows, q_left, q_full, 0, head, sequence, 0, 64, HALF, 0, 0)
        load_rows(q_rows, left, q_full, 2, head, sequence, 0, 64, HALF, 0, HALF)
        load_rows(q_rows, weights, q_full, 0, head, sequence, 0, 64, COLUMNS, 0, 2 * HALF)
    l_slot = 0
    l_phase = 1
    slot = 0
    phase = 1  # a fresh barrier lets the wait for the phase before its first one pass
    row = begin + (blocks - 1) * BLOCK_N
    pages = find_pages(table, row, end, BLOCK_N, PAGE)
    for i in range(blocks):
        now = pages
        # A block ahead, so that nobody waits for them.
        pages = find_pages(table, row - BLOCK_N, end, BLOCK_N, PAGE)
        mbarrier.wait(left_empty.index(l_slot), l_phase)
        mbarrier.wait(q_read, 0, pred=i == 2)
        load_rows(
            cache_rows, left, left_full.index(l_slot), l_slot, row, 0, now, BLOCK_N, HALF, PAGE, 0
        )
        l_slot, l_phase = advance(l_slot, l_phase, 3)
        mbarrier.wait(right_empty.index(slot), phase)
        bar = right_full.index(slot)
        load_rows(cache_rows, right, bar, slot, row, 0, now, BLOCK_N, HALF, PAGE, HALF)
        load_rows(cache_rows, rope, bar, slot, row, 0, now, BLOCK_N, COLUMNS, PAGE, 2 * HALF)
        row -= BLOCK_N
        slot, phase = advance(slot, phase, STAGES)


@gluon.jit
def weigh(
    given,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr, LSE: gl.constexpr,
):  # fmt: skip
    """The warp group of logits: weights, and factors of what was accumulated, for the others."""
    (lse, stride_lh, heads, scale, head, begin, end, q_left, _, weights, factors, left, right,
     rope, q_full, left_full, right_full, weighed, summed, q_read, p_read) = given  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    q_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    blocks = gl.cdiv(end - begin, BLOCK_N)
    maximum = gl.full([64], -1e30, gl.float32, row_layout)
    zero = gl.zeros([64, BLOCK_N], gl.float32, layout)
    slot = 0
    phase = 0
    mbarrier.wait(q_full, 0, pred=blocks > 0)
    # In registers: its place is that of the first weights.
    q_rope = weights.index(0).load(q_layout)
    q_held = left.index(2).load(q_layout)
    mbarrier.arrive(q_read, count=1)
    l_slot = 0
    l_phase = 0
    total = gl.zeros([64], gl.float32, row_layout)
    for i in range(blocks):
        mbarrier.wait(left_full.index(l_slot), l_phase)
        s = warpgroup_mma(
            q_left.index(0), left.index(l_slot).permute((1, 0)), zero, use_acc=False, is_async=True
        )
        l_slot, l_phase = advance(l_slot, l_phase, 3)
        mbarrier.wait(right_full.index(slot), phase)
        s = warpgroup_mma(q_held, right.index(slot).permute((1, 0)), s, is_async=True)
        s = warpgroup_mma(q_rope, rope.index(slot).permute((1, 0)), s, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        if i == 0:
            n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
            rest = end - begin - (blocks - 1) * BLOCK_N
            s = gl.where((n < rest)[None, :], s, float("-inf"))
        p, factor, maximum, parts = softmax(s, maximum, scale, False)
        mbarrier.wait(p_read.index(slot), phase ^ 1)
        weights.index(slot).store(p.to(weights.dtype))
        factors.index(slot).store(factor)
        fence_async_shared()
        mbarrier.arrive(weighed.index(slot), count=1)
        total = total * factor + gl.convert_layout(gl.sum(parts, 1), row_layout)
        slot, phase = advance(slot, phase, STAGES)
    factors.index(STAGES).store(total)
    mbarrier.arrive(summed, count=1)
    if LSE:
        m = head + gl.arange(0, 64, row_layout)
        value = maximum + gl.log2(gl.where(total > 0.0, total, 1.0))
        value = gl.where(total > 0.0, value, float("-inf"))
        gl.store(lse + m * stride_lh, value, mask=m < heads)


@gluon.jit
def clear_rows(block, first):
    """Zeros in rows `first` … of a block in shared memory: what lies behind the last key may be no
    number, which times nothing is no number."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    r = gl.arange(0, block.shape[0], gl.SliceLayout(1, layout))
    for i in gl.static_range(block.shape[1] // COLUMNS):
        part = block.slice(i * COLUMNS, COLUMNS, 1)
        values = part.load(layout)
        part.store(gl.where((r < first)[:, None], values, 0.0).to(values.dtype))


@gluon.jit
def accumulate(
    given,
    PART: gl.constexpr, HALF: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    LSE: gl.constexpr, DEPTH: gl.constexpr,
):  # fmt: skip
    """A warp group of outputs: columns PART · HALF … of all rows."""
    (out, stride_oh, heads, head, begin, end, weights, factors, ring, full, empty, weighed,
     summed, p_read) = given  # fmt: skip
    # Of 256 columns at once the assembler does not give an instruction the registers.
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, min(HALF, 128), 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    blocks = gl.cdiv(end - begin, BLOCK_N)
    acc = gl.zeros([64, HALF], gl.float32, layout)
    slot = 0
    phase = 0
    k_slot = 0
    k_phase = 0
    for i in range(blocks):
        mbarrier.wait(full.index(k_slot), k_phase)
        mbarrier.wait(weighed.index(slot), phase)
        if i == 0:
            rest = end - begin - (blocks - 1) * BLOCK_N
            if rest < BLOCK_N:
                clear_rows(ring.index(k_slot), rest)
                fence_async_shared()
        factor = factors.index(slot).load(row_layout)
        acc = acc * factor[:, None]
        acc = warpgroup_mma(weights.index(slot), ring.index(k_slot), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index(k_slot), count=1)
        if DEPTH > STAGES:
            mbarrier.arrive(p_read.index(slot), count=1)
        k_slot, k_phase = advance(k_slot, k_phase, DEPTH)
        slot, phase = advance(slot, phase, STAGES)
    mbarrier.wait(summed, 0)
    total = factors.index(STAGES).load(row_layout)
    some = total > 0.0
    acc = acc * (1.0 / gl.where(some, total, 1.0))[:, None]
    m = head + gl.arange(0, 64, row_layout)
    e = PART * HALF + gl.arange(0, HALF, gl.SliceLayout(0, layout))
    mask = m < heads
    if LSE:
        mask = mask & some
    rows = out + (m * stride_oh)[:, None] + e[None, :]
    gl.store(rows, acc.to(out.dtype.element_ty), mask=mask[:, None] & (e >= 0)[None, :])


@gluon.jit
def mla_decode_three(
    q, cache, block_table, context_len, out, lse,
    stride_qs, stride_qh, stride_cb, stride_cn, stride_table,
    stride_os, stride_oh, stride_split, stride_ls, stride_lh,
    sequences, heads, head_blocks, splits, cache_blocks, scale,
    DV: gl.constexpr, PAGE: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, HELD: gl.constexpr,
):  # fmt: skip
    """A program takes 64 heads of a sequence and one part of its keys; scale is in units of log 2.
    `lse`: see `paged_attention.kernel_triton`. A row of q and of the cache has DV + 64 columns."""
    LSE: gl.constexpr = lse is not None
    HALF: gl.constexpr = DV // 2
    dtype: gl.constexpr = q.dtype.element_ty
    # Programs that read the same latents run side by side.
    pid = gl.program_id(0)
    head = pid % head_blocks * 64
    split = pid // head_blocks % splits
    sequence = pid // head_blocks // splits
    context = gl.load(context_len + sequence)
    share = gl.cdiv(gl.cdiv(context, splits), BLOCK_N) * BLOCK_N
    begin = split * share
    end = gl.minimum(begin + share, context)

    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q_left = gl.allocate_shared_memory(dtype, [1, 64, HALF], tile)
    left = gl.allocate_shared_memory(dtype, [3, BLOCK_N, HALF], tile)
    right = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HALF], tile)
    rope = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, COLUMNS], tile)
    weights = gl.allocate_shared_memory(dtype, [STAGES, 64, BLOCK_N], tile)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    factors = gl.allocate_shared_memory(gl.float32, [STAGES + 1, 64], plain)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    summed = gl.allocate_shared_memory(gl.int64, [1], barrier)
    left_full = gl.allocate_shared_memory(gl.int64, [3, 1], barrier)
    right_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    left_empty = gl.allocate_shared_memory(gl.int64, [3, 1], barrier)
    right_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    weighed = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    mbarrier.init(q_full, count=3)
    mbarrier.init(summed, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(right_full.index(i), count=2)
        mbarrier.init(right_empty.index(i), count=1)
        mbarrier.init(weighed.index(i), count=1)
    q_read = gl.allocate_shared_memory(gl.int64, [1], barrier)
    p_read = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barrier)
    mbarrier.init(q_read, count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(p_read.index(i), count=1)
    for i in gl.static_range(3):
        mbarrier.init(left_full.index(i), count=1)
        mbarrier.init(left_empty.index(i), count=1)
    fence_async_shared()
    three: gl.constexpr = gl.NVMMASharedLayout(128, 16, 3)
    q_rows = tma.make_tensor_descriptor(
        q, [heads, sequences, DV + COLUMNS], [stride_qh, stride_qs, 1], [64, 1, COLUMNS], three
    )
    four: gl.constexpr = gl.NVMMASharedLayout(128, 16, 4)
    box: gl.constexpr = [1, min(PAGE, BLOCK_N), 1, COLUMNS]
    cache_rows = tma.make_tensor_descriptor(
        cache, [cache_blocks, PAGE, 1, DV + COLUMNS], [stride_cb, stride_cn, stride_cn, 1], box,
        four,
    )  # fmt: skip
    far = sequence.to(gl.int64)
    table = block_table + far * stride_table
    out += far * stride_os + split * stride_split
    lse_or_q = q
    if LSE:
        lse_or_q = lse + far * stride_ls + split
    copy = (
        q_rows, cache_rows, table, sequence, head, begin, end, q_left, q_left, weights, left,
        right, rope, q_full, left_full, right_full, left_empty, right_empty, q_read,
    )  # fmt: skip
    logits = (
        lse_or_q, stride_lh, heads, scale, head, begin, end, q_left, q_left, weights, factors,
        left, right, rope, q_full, left_full, right_full, weighed, summed, q_read, p_read,
    )  # fmt: skip
    lefts = (
        out, stride_oh, heads, head, begin, end, weights, factors, left, left_full, left_empty,
        weighed, summed, p_read,
    )  # fmt: skip
    rights = (
        out, stride_oh, heads, head, begin, end, weights, factors, right, right_full, right_empty,
        weighed, summed, p_read,
    )  # fmt: skip
    # Constants stay constants in tuples only where they are written down.
    gl.warp_specialize(
        [
            (weigh, (logits, BLOCK_N, STAGES, LSE)),
            (accumulate, (lefts, 0, HALF, BLOCK_N, STAGES, LSE, 3)),
            (accumulate, (rights, 1, HALF, BLOCK_N, STAGES, LSE, 2)),
            (copy_latents, (copy, HALF, BLOCK_N, STAGES, PAGE)),
        ],
        [4, 4, 1],
        [REGISTERS, REGISTERS, 24],
    )  # fmt: skip
