# mypy: ignore-errors
"""Decode attention over a paged latent cache for Hopper, in Gluon.

A program has 64 rows, heads of one sequence, and a share of its keys, 64 at a time. Their output of
64 × 512 numbers takes half of all registers: two warp groups hold a half of its columns each and
multiply weights with latents; a third one multiplies q with the keys and makes the weights, of the
next 64 keys while the others work; a warp copies.

A block of latents lies in shared memory once and is both operands: keys by rows, values by columns.
It lies there in quarters. Each group of outputs gives its near quarter back before it is through
with its far one, and the far ones have three places: so the next keys are there in time, in what
memory is left. That for the third place of a far quarter is that of its queries, which the group of
logits holds in registers. Blocks go from the last to the first: the ragged one comes first.
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

NEAR = gl.constexpr(2)  # places of near quarters, of weights and of their factors
FAR = gl.constexpr(3)  # places of far quarters


@gluon.jit
def copy_latents(given, PART: gl.constexpr, BLOCK_N: gl.constexpr, PAGE: gl.constexpr):
    """The copying warp: queries, then blocks of latents, quarters where they are free. PART:
    columns of a quarter."""
    (q_rows, cache_rows, table, sequence, head, begin, end, q_near, weights, near_0, near_1, far_0,
     far_1, rope, q_full, q_read, near_full, near_empty, far_full, far_empty) = given  # fmt: skip
    blocks = gl.cdiv(end - begin, BLOCK_N)
    if blocks > 0:
        load_rows(q_rows, far_0, q_full, 2, head, sequence, 0, 64, PART, 0, PART)
        load_rows(q_rows, far_1, q_full, 2, head, sequence, 0, 64, PART, 0, 3 * PART)
        load_rows(q_rows, weights, q_full, 0, head, sequence, 0, 64, COLUMNS, 0, 4 * PART)
        load_rows(q_rows, q_near, q_full, 0, head, sequence, 0, 64, PART, 0, 0)
        load_rows(q_rows, q_near, q_full, 1, head, sequence, 0, 64, PART, 0, 2 * PART)
    near = 0
    near_phase = 1  # a fresh barrier lets the wait for the phase before its first one pass
    far = 0
    far_phase = 1
    row = begin + (blocks - 1) * BLOCK_N
    pages = find_pages(table, row, end, BLOCK_N, PAGE)
    for i in range(blocks):
        now = pages
        # A block ahead, so that nobody waits for them.
        pages = find_pages(table, row - BLOCK_N, end, BLOCK_N, PAGE)
        mbarrier.wait(q_read, 0, pred=i == 2)
        mbarrier.wait(far_empty.index(far), far_phase)
        bar = far_full.index(far)
        load_rows(cache_rows, far_0, bar, far, row, 0, now, BLOCK_N, PART, PAGE, PART)
        load_rows(cache_rows, far_1, bar, far, row, 0, now, BLOCK_N, PART, PAGE, 3 * PART)
        far, far_phase = advance(far, far_phase, FAR)
        mbarrier.wait(near_empty.index(near), near_phase)
        bar = near_full.index(near)
        load_rows(cache_rows, near_0, bar, near, row, 0, now, BLOCK_N, PART, PAGE, 0)
        load_rows(cache_rows, near_1, bar, near, row, 0, now, BLOCK_N, PART, PAGE, 2 * PART)
        load_rows(cache_rows, rope, bar, near, row, 0, now, BLOCK_N, COLUMNS, PAGE, 4 * PART)
        near, near_phase = advance(near, near_phase, NEAR)
        row -= BLOCK_N


@gluon.jit
def weigh(given, BLOCK_N: gl.constexpr, LSE: gl.constexpr):
    """The warp group of logits: weights, and factors of what was accumulated, for the others."""
    (lse, stride_lh, heads, scale, head, begin, end, q_near, weights, factors, near_0, near_1,
     far_0, far_1, rope, q_full, q_read, near_full, far_full, far_empty, weighed,
     summed) = given  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    q_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    blocks = gl.cdiv(end - begin, BLOCK_N)
    maximum = gl.full([64], -1e30, gl.float32, row_layout)
    total = gl.zeros([64], gl.float32, row_layout)
    zero = gl.zeros([64, BLOCK_N], gl.float32, layout)
    mbarrier.wait(q_full, 0, pred=blocks > 0)
    q_far_0 = far_0.index(2).load(q_layout)
    q_far_1 = far_1.index(2).load(q_layout)
    q_rope = weights.index(0).load(q_layout)
    mbarrier.arrive(q_read, count=1)
    near = 0
    near_phase = 0
    far = 0
    far_phase = 0
    read = 1  # the far place of two blocks before
    read_phase = 1
    for i in range(blocks):
        mbarrier.wait(far_full.index(far), far_phase)
        keys = far_0.index(far).permute((1, 0))
        s = warpgroup_mma(q_far_0, keys, zero, use_acc=False, is_async=True)
        s = warpgroup_mma(q_far_1, far_1.index(far).permute((1, 0)), s, is_async=True)
        far, far_phase = advance(far, far_phase, FAR)
        mbarrier.wait(near_full.index(near), near_phase)
        s = warpgroup_mma(q_near.index(0), near_0.index(near).permute((1, 0)), s, is_async=True)
        s = warpgroup_mma(q_near.index(1), near_1.index(near).permute((1, 0)), s, is_async=True)
        s = warpgroup_mma(q_rope, rope.index(near).permute((1, 0)), s, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
        if i == 0:
            n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
            rest = end - begin - (blocks - 1) * BLOCK_N
            s = gl.where((n < rest)[None, :], s, float("-inf"))
        p, factor, maximum, parts = softmax(s, maximum, scale, False)
        mbarrier.wait(far_empty.index(read), read_phase)
        read, read_phase = advance(read, read_phase, FAR)
        weights.index(near).store(p.to(weights.dtype))
        factors.index(near).store(factor)
        fence_async_shared()
        mbarrier.arrive(weighed.index(near), count=1)
        total = total * factor + gl.convert_layout(gl.sum(parts, 1), row_layout)
        near, near_phase = advance(near, near_phase, NEAR)
    factors.index(NEAR).store(total)
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
def store_rows(out, stride_oh, acc, m, mask, first):
    """Columns `first` … of the rows that `mask` names."""
    e = gl.arange(0, acc.shape[1], gl.SliceLayout(0, acc.type.layout))
    rows = out + first + (m * stride_oh)[:, None] + e[None, :]
    gl.store(rows, acc.to(out.dtype.element_ty), mask=mask[:, None] & (e >= 0)[None, :])


@gluon.jit
def accumulate(
    given,
    FIRST: gl.constexpr, PART: gl.constexpr, BLOCK_N: gl.constexpr, LSE: gl.constexpr,
):  # fmt: skip
    """A warp group of outputs: two quarters of PART columns, from column FIRST on, of all rows."""
    (out, stride_oh, heads, head, begin, end, weights, factors, near_ring, far_ring, near_full,
     near_empty, far_full, far_empty, weighed, summed) = given  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    blocks = gl.cdiv(end - begin, BLOCK_N)
    acc_near = gl.zeros([64, PART], gl.float32, layout)
    acc_far = gl.zeros([64, PART], gl.float32, layout)
    near = 0
    near_phase = 0
    far = 0
    far_phase = 0
    for i in range(blocks):
        mbarrier.wait(far_full.index(far), far_phase)
        mbarrier.wait(near_full.index(near), near_phase)
        mbarrier.wait(weighed.index(near), near_phase)
        if i == 0:
            rest = end - begin - (blocks - 1) * BLOCK_N
            if rest < BLOCK_N:
                clear_rows(near_ring.index(near), rest)
                clear_rows(far_ring.index(far), rest)
                fence_async_shared()
        factor = factors.index(near).load(row_layout)[:, None]
        p = weights.index(near)
        acc_near = acc_near * factor
        acc_far = acc_far * factor
        acc_near = warpgroup_mma(p, near_ring.index(near), acc_near, is_async=True)
        acc_far = warpgroup_mma(p, far_ring.index(far), acc_far, is_async=True)
        acc_near = warpgroup_mma_wait(1, deps=(acc_near,))
        mbarrier.arrive(near_empty.index(near), count=1)
        acc_far = warpgroup_mma_wait(0, deps=(acc_far,))
        mbarrier.arrive(far_empty.index(far), count=1)
        near, near_phase = advance(near, near_phase, NEAR)
        far, far_phase = advance(far, far_phase, FAR)
    mbarrier.wait(summed, 0)
    total = factors.index(NEAR).load(row_layout)
    some = total > 0.0
    inverse = (1.0 / gl.where(some, total, 1.0))[:, None]
    m = head + gl.arange(0, 64, row_layout)
    mask = m < heads
    if LSE:
        mask = mask & some
    store_rows(out, stride_oh, acc_near * inverse, m, mask, FIRST)
    store_rows(out, stride_oh, acc_far * inverse, m, mask, FIRST + PART)


@gluon.jit
def mla_decode_hopper(
    q, cache, block_table, context_len, out, lse,
    stride_qs, stride_qh, stride_cb, stride_cn, stride_table,
    stride_os, stride_oh, stride_split, stride_ls, stride_lh,
    sequences, heads, head_blocks, splits, cache_blocks, scale,
    DV: gl.constexpr, PAGE: gl.constexpr, BLOCK_N: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """A program takes 64 heads of a sequence and one part of its keys; scale is in units of log 2.
    `lse`: see `paged_attention.kernel_triton`. A row of q and of the cache has DV + 64 columns."""
    LSE: gl.constexpr = lse is not None
    PART: gl.constexpr = DV // 4
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
    q_near = gl.allocate_shared_memory(dtype, [2, 64, PART], tile)
    near_0 = gl.allocate_shared_memory(dtype, [NEAR, BLOCK_N, PART], tile)
    near_1 = gl.allocate_shared_memory(dtype, [NEAR, BLOCK_N, PART], tile)
    far_0 = gl.allocate_shared_memory(dtype, [FAR, BLOCK_N, PART], tile)
    far_1 = gl.allocate_shared_memory(dtype, [FAR, BLOCK_N, PART], tile)
    rope = gl.allocate_shared_memory(dtype, [NEAR, BLOCK_N, COLUMNS], tile)
    weights = gl.allocate_shared_memory(dtype, [NEAR, 64, BLOCK_N], tile)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    factors = gl.allocate_shared_memory(gl.float32, [NEAR + 1, 64], plain)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    q_read = gl.allocate_shared_memory(gl.int64, [1], barrier)
    summed = gl.allocate_shared_memory(gl.int64, [1], barrier)
    weighed = gl.allocate_shared_memory(gl.int64, [NEAR, 1], barrier)
    near_full = gl.allocate_shared_memory(gl.int64, [NEAR, 1], barrier)
    near_empty = gl.allocate_shared_memory(gl.int64, [NEAR, 1], barrier)
    far_full = gl.allocate_shared_memory(gl.int64, [FAR, 1], barrier)
    far_empty = gl.allocate_shared_memory(gl.int64, [FAR, 1], barrier)
    mbarrier.init(q_full, count=5)
    mbarrier.init(q_read, count=1)
    mbarrier.init(summed, count=1)
    for i in gl.static_range(NEAR):
        mbarrier.init(weighed.index(i), count=1)
        mbarrier.init(near_full.index(i), count=3)
        mbarrier.init(near_empty.index(i), count=2)
    for i in gl.static_range(FAR):
        mbarrier.init(far_full.index(i), count=2)
        mbarrier.init(far_empty.index(i), count=2)
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
    place = sequence.to(gl.int64)
    table = block_table + place * stride_table
    out += place * stride_os + split * stride_split
    lse_or_q = q
    if LSE:
        lse_or_q = lse + place * stride_ls + split
    copy = (
        q_rows, cache_rows, table, sequence, head, begin, end, q_near, weights, near_0, near_1,
        far_0, far_1, rope, q_full, q_read, near_full, near_empty, far_full, far_empty,
    )  # fmt: skip
    logits = (
        lse_or_q, stride_lh, heads, scale, head, begin, end, q_near, weights, factors, near_0,
        near_1, far_0, far_1, rope, q_full, q_read, near_full, far_full, far_empty, weighed, summed,
    )  # fmt: skip
    lefts = (
        out, stride_oh, heads, head, begin, end, weights, factors, near_0, far_0, near_full,
        near_empty, far_full, far_empty, weighed, summed,
    )  # fmt: skip
    rights = (
        out, stride_oh, heads, head, begin, end, weights, factors, near_1, far_1, near_full,
        near_empty, far_full, far_empty, weighed, summed,
    )  # fmt: skip
    # Constants stay constants in tuples only where they are written down.
    gl.warp_specialize(
        [
            (weigh, (logits, BLOCK_N, LSE)),
            (accumulate, (lefts, 0, PART, BLOCK_N, LSE)),
            (accumulate, (rights, 2 * PART, PART, BLOCK_N, LSE)),
            (copy_latents, (copy, PART, BLOCK_N, PAGE)),
        ],
        [4, 4, 1],
        [REGISTERS, REGISTERS, 24],
    )  # fmt: skip
