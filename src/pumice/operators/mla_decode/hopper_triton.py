# mypy: ignore-errors
"""Decode attention over a paged latent cache for Hopper, in Gluon.

A program has 64 rows, heads of one sequence, and a share of its keys, 64 at a time. Their output of
64 × 512 numbers takes half of all registers: two warp groups hold a half of its columns each and
multiply weights with latents; a third one multiplies q with the keys and makes the weights, of the
next 64 keys while the others work; a warp copies.

A block of latents lies in shared memory once and is both operands: keys by rows, values by columns.
It lies there in quarters. Each group of outputs gives its near quarter back before it is through
with its far one, and the far ones have three places: so the next keys are there in time, in what
memory is left. One of those places holds a quarter of the queries until the group of logits has it
in registers. That group begins a block's products with its far quarters, so that they run beside
the exponentials of the block before. Blocks go from the last to the first: the ragged one comes
first.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from pumice.operators.flash_attention.hopper_loads_triton import find_pages, load_rows
from pumice.operators.flash_attention.hopper_tiles_triton import (
    COLUMNS,
    advance,
    reinterpret,
)
from pumice.operators.flash_attention.hopper_triton import softmax
from pumice.operators.triton.gluon_names_triton import begin_copy

NEAR = gl.constexpr(2)  # places of near quarters, of weights and of their factors
FAR = gl.constexpr(3)  # places of far quarters


@gluon.jit
def copy_queries(q, stride_qh, heads, head, block, FIRST: gl.constexpr):
    """64 rows of q, columns FIRST …, into shared memory, begun; zeros where there are no heads."""
    LANES: gl.constexpr = min(block.shape[1] // 8, 32)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // LANES, LANES], [4, 1], [1, 0])
    m = head + gl.arange(0, 64, gl.SliceLayout(1, layout))
    d = gl.arange(0, block.shape[1], gl.SliceLayout(0, layout))
    rows = q + FIRST + (m * stride_qh)[:, None] + d[None, :]
    begin_copy(block, rows, mask=(m < heads)[:, None] & (d >= 0)[None, :])


@gluon.jit
def copy_latents(given, PART: gl.constexpr, BLOCK_N: gl.constexpr, PAGE: gl.constexpr):
    """The copying warp: blocks of latents, quarters where they are free. PART: columns of one."""
    (cache_rows, table, begin, end, near_0, near_1, far_0, far_1, rope, q_read, near_full,
     near_empty, far_full, far_empty, rope_full, rope_empty) = given  # fmt: skip
    blocks = gl.cdiv(end - begin, BLOCK_N)
    near = 0
    near_phase = 1  # a fresh barrier lets the wait for the phase before its first one pass
    far = 0
    far_phase = 1
    rope_phase = 1
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
        mbarrier.wait(rope_empty, rope_phase)
        load_rows(cache_rows, rope, rope_full, 0, row, 0, now, BLOCK_N, COLUMNS, PAGE, 4 * PART)
        rope_phase ^= 1
        near, near_phase = advance(near, near_phase, NEAR)
        row -= BLOCK_N


@gluon.jit
def begin_logits(q_far_0, q_far_1, far_0, far_1, bar, far, phase, zero):
    """The products of a block's far quarters."""
    mbarrier.wait(bar.index(far), phase)
    keys = far_0.index(far).permute((1, 0))
    s = warpgroup_mma(q_far_0, keys, zero, use_acc=False, is_async=True)
    return warpgroup_mma(q_far_1, far_1.index(far).permute((1, 0)), s, is_async=True)


@gluon.jit
def finish_logits(
    s, q_near, q_rope, near_0, near_1, rope, near_full, rope_full, rope_empty, near, phase,
    rope_phase,
):  # fmt: skip
    """Those of the near ones and of the rest."""
    mbarrier.wait(near_full.index(near), phase)
    s = warpgroup_mma(q_near.index(0), near_0.index(near).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(q_near.index(1), near_1.index(near).permute((1, 0)), s, is_async=True)
    mbarrier.wait(rope_full, rope_phase)
    s = warpgroup_mma(q_rope, rope.index(0).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    mbarrier.arrive(rope_empty, count=1)
    return s


@gluon.jit
def give_weights(s, maximum, total, scale, weights, factors, weighed, far_empty, read, phase):
    """The weights of a block to the others, when they are through with those before."""
    p, factor, maximum, parts = softmax(s, maximum, scale, False)
    mbarrier.wait(far_empty.index(read), phase)
    weights.index(0).store(p.to(weights.dtype))
    factors.index(0).store(factor)
    fence_async_shared()
    mbarrier.arrive(weighed, count=1)
    total = total * factor + gl.convert_layout(gl.sum(parts, 1), total.type.layout)
    return maximum, total


@gluon.jit
def weigh(given, BLOCK_N: gl.constexpr, LSE: gl.constexpr):
    """The warp group of logits: weights, and factors of what was accumulated, for the others. The
    far part of the next block's products runs beside a block's exponentials."""
    (lse, stride_lh, heads, scale, head, begin, end, q_near, q_far_1, weights, factors, near_0,
     near_1, far_0, far_1, rope, q_read, near_full, far_full, far_empty, rope_full, rope_empty,
     weighed, summed) = given  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    q_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    blocks = gl.cdiv(end - begin, BLOCK_N)
    maximum = gl.full([64], -1e30, gl.float32, row_layout)
    total = gl.zeros([64], gl.float32, row_layout)
    zero = gl.zeros([64, BLOCK_N], gl.float32, layout)
    async_copy.wait_group(0)
    fence_async_shared()
    q_far_0 = far_0.index(2).load(q_layout)
    q_rope = weights.index(0).load(q_layout)
    mbarrier.arrive(q_read, count=1)
    near = 0
    near_phase = 0
    far = 0
    far_phase = 0
    rope_phase = 0
    read = 2  # the far place of the block before
    read_phase = 1
    if blocks > 0:
        s = begin_logits(q_far_0, q_far_1.index(0), far_0, far_1, far_full, far, far_phase, zero)
        s = finish_logits(
            s, q_near, q_rope, near_0, near_1, rope, near_full, rope_full, rope_empty, near,
            near_phase, rope_phase,
        )  # fmt: skip
        n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
        rest = end - begin - (blocks - 1) * BLOCK_N
        s = gl.where((n < rest)[None, :], s, float("-inf"))
        for _ in range(blocks - 1):
            near, near_phase = advance(near, near_phase, NEAR)
            far, far_phase = advance(far, far_phase, FAR)
            rope_phase ^= 1
            following = begin_logits(
                q_far_0, q_far_1.index(0), far_0, far_1, far_full, far, far_phase, zero
            )
            maximum, total = give_weights(
                s, maximum, total, scale, weights, factors, weighed, far_empty, read, read_phase
            )
            read, read_phase = advance(read, read_phase, FAR)
            s = finish_logits(
                following, q_near, q_rope, near_0, near_1, rope, near_full, rope_full, rope_empty,
                near, near_phase, rope_phase,
            )  # fmt: skip
        maximum, total = give_weights(
            s, maximum, total, scale, weights, factors, weighed, far_empty, read, read_phase
        )
    factors.index(1).store(total)
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
def store_rows(out, stride_oh, acc, ring, head, heads, first, BITS: gl.constexpr):
    """A quarter of the rows of `heads`, through shared memory: whole lines for whole warps."""
    PART: gl.constexpr = acc.shape[1]
    WIDTH: gl.constexpr = 128 // BITS
    LANES: gl.constexpr = min(PART // WIDTH, 32)
    layout: gl.constexpr = gl.BlockedLayout([1, WIDTH], [32 // LANES, LANES], [4, 1], [1, 0])
    tile: gl.constexpr = gl.NVMMASharedLayout(128, BITS, 2)
    block = reinterpret(ring, out.dtype.element_ty, [1, 64, PART], tile).index(0)
    block.store(acc.to(out.dtype.element_ty))
    m = head + gl.arange(0, 64, gl.SliceLayout(1, layout))
    e = gl.arange(0, PART, gl.SliceLayout(0, layout))
    rows = out + first + (m * stride_oh)[:, None] + e[None, :]
    gl.store(rows, block.load(layout), mask=(m < heads)[:, None] & (e >= 0)[None, :])


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
    phase = 0
    for i in range(blocks):
        mbarrier.wait(far_full.index(far), far_phase)
        mbarrier.wait(near_full.index(near), near_phase)
        mbarrier.wait(weighed, phase)
        phase ^= 1
        if i == 0:
            rest = end - begin - (blocks - 1) * BLOCK_N
            if rest < BLOCK_N:
                clear_rows(near_ring.index(near), rest)
                clear_rows(far_ring.index(far), rest)
                fence_async_shared()
        factor = factors.index(0).load(row_layout)[:, None]
        p = weights.index(0)
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
    total = factors.index(1).load(row_layout)
    inverse = (1.0 / gl.where(total > 0.0, total, 1.0))[:, None]
    if LSE:  # nobody reads a share without keys
        heads = gl.where(blocks > 0, heads, 0)
    BITS: gl.constexpr = 32 if LSE else 16
    store_rows(out, stride_oh, acc_near * inverse, far_ring, head, heads, FIRST, BITS)
    store_rows(out, stride_oh, acc_far * inverse, far_ring, head, heads, FIRST + PART, BITS)


@gluon.jit
def mla_decode_hopper(
    q, cache, block_table, context_len, out, lse,
    stride_qs, stride_qh, stride_cb, stride_cn, stride_table,
    stride_os, stride_oh, stride_split, stride_ls, stride_lh,
    heads, head_blocks, splits, cache_blocks, scale,
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
    q_far_1 = gl.allocate_shared_memory(dtype, [1, 64, PART], tile)
    near_0 = gl.allocate_shared_memory(dtype, [NEAR, BLOCK_N, PART], tile)
    near_1 = gl.allocate_shared_memory(dtype, [NEAR, BLOCK_N, PART], tile)
    far_0 = gl.allocate_shared_memory(dtype, [FAR, BLOCK_N, PART], tile)
    far_1 = gl.allocate_shared_memory(dtype, [FAR, BLOCK_N, PART], tile)
    rope = gl.allocate_shared_memory(dtype, [1, BLOCK_N, COLUMNS], tile)
    weights = gl.allocate_shared_memory(dtype, [1, 64, BLOCK_N], tile)
    place = sequence.to(gl.int64)
    rows = q + place * stride_qs
    copy_queries(rows, stride_qh, heads, head, far_0.index(2), PART)
    copy_queries(rows, stride_qh, heads, head, weights.index(0), 4 * PART)
    copy_queries(rows, stride_qh, heads, head, q_far_1.index(0), 3 * PART)
    copy_queries(rows, stride_qh, heads, head, q_near.index(0), 0)
    copy_queries(rows, stride_qh, heads, head, q_near.index(1), 2 * PART)
    async_copy.commit_group()
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    factors = gl.allocate_shared_memory(gl.float32, [2, 64], plain)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_read = gl.allocate_shared_memory(gl.int64, [1], barrier)
    summed = gl.allocate_shared_memory(gl.int64, [1], barrier)
    weighed = gl.allocate_shared_memory(gl.int64, [1], barrier)
    rope_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    rope_empty = gl.allocate_shared_memory(gl.int64, [1], barrier)
    near_full = gl.allocate_shared_memory(gl.int64, [NEAR, 1], barrier)
    near_empty = gl.allocate_shared_memory(gl.int64, [NEAR, 1], barrier)
    far_full = gl.allocate_shared_memory(gl.int64, [FAR, 1], barrier)
    far_empty = gl.allocate_shared_memory(gl.int64, [FAR, 1], barrier)
    mbarrier.init(q_read, count=1)
    mbarrier.init(summed, count=1)
    mbarrier.init(weighed, count=1)
    mbarrier.init(rope_full, count=1)
    mbarrier.init(rope_empty, count=1)
    for i in gl.static_range(NEAR):
        mbarrier.init(near_full.index(i), count=2)
        mbarrier.init(near_empty.index(i), count=2)
    for i in gl.static_range(FAR):
        mbarrier.init(far_full.index(i), count=2)
        mbarrier.init(far_empty.index(i), count=2)
    fence_async_shared()
    four: gl.constexpr = gl.NVMMASharedLayout(128, 16, 4)
    box: gl.constexpr = [1, min(PAGE, BLOCK_N), 1, COLUMNS]
    cache_rows = tma.make_tensor_descriptor(
        cache, [cache_blocks, PAGE, 1, DV + COLUMNS], [stride_cb, stride_cn, stride_cn, 1], box,
        four,
    )  # fmt: skip
    table = block_table + place * stride_table
    out += place * stride_os + split * stride_split
    lse_or_q = q
    if LSE:
        lse_or_q = lse + place * stride_ls + split
    copy = (
        cache_rows, table, begin, end, near_0, near_1, far_0, far_1, rope, q_read, near_full,
        near_empty, far_full, far_empty, rope_full, rope_empty,
    )  # fmt: skip
    logits = (
        lse_or_q, stride_lh, heads, scale, head, begin, end, q_near, q_far_1, weights, factors,
        near_0, near_1, far_0, far_1, rope, q_read, near_full, far_full, far_empty, rope_full,
        rope_empty, weighed, summed,
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
