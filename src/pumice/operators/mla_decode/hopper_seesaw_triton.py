# mypy: ignore-errors
"""Decode attention over a paged latent cache for Hopper, in Gluon: two warp groups in a seesaw."""

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
from pumice.operators.flash_attention.hopper_tiles_triton import COLUMNS
from pumice.operators.flash_attention.hopper_triton import softmax
from pumice.operators.mla_decode.hopper_triton import clear_rows


@gluon.jit
def copy_pairs(given, HALF: gl.constexpr, BLOCK_N: gl.constexpr, PAGE: gl.constexpr):
    (q_rows, cache_rows, table, sequence, head, begin, end, q_left, q_right, weights, left, right,
     rope, q_full, left_full, right_full, left_empty, right_empty) = given  # fmt: skip
    blocks = gl.cdiv(end - begin, BLOCK_N)
    pairs = gl.cdiv(blocks, 2)
    if blocks > 0:
        load_rows(q_rows, q_left, q_full, 0, head, sequence, 0, 64, HALF, 0, 0)
        load_rows(q_rows, q_right, q_full, 0, head, sequence, 0, 64, HALF, 0, HALF)
        load_rows(q_rows, weights, q_full, 0, head, sequence, 0, 64, COLUMNS, 0, 2 * HALF)
    phase = 1
    row = begin + (blocks - 1) * BLOCK_N
    first = find_pages(table, row, end, BLOCK_N, PAGE)
    second = find_pages(table, row - BLOCK_N, end, BLOCK_N, PAGE)
    for _ in range(pairs):
        now = first
        then = second
        other = row - BLOCK_N
        first = find_pages(table, row - 2 * BLOCK_N, end, BLOCK_N, PAGE)
        second = find_pages(table, row - 3 * BLOCK_N, end, BLOCK_N, PAGE)
        mbarrier.wait(left_empty.index(0), phase)
        load_rows(cache_rows, left, left_full.index(0), 0, row, 0, now, BLOCK_N, HALF, PAGE, 0)
        mbarrier.wait(right_empty.index(1), phase)
        bar = right_full.index(1)
        load_rows(cache_rows, right, bar, 1, other, 0, then, BLOCK_N, HALF, PAGE, HALF)
        load_rows(cache_rows, rope, bar, 1, other, 0, then, BLOCK_N, COLUMNS, PAGE, 2 * HALF)
        mbarrier.wait(right_empty.index(0), phase)
        bar = right_full.index(0)
        load_rows(cache_rows, right, bar, 0, row, 0, now, BLOCK_N, HALF, PAGE, HALF)
        load_rows(cache_rows, rope, bar, 0, row, 0, now, BLOCK_N, COLUMNS, PAGE, 2 * HALF)
        mbarrier.wait(left_empty.index(1), phase)
        load_rows(cache_rows, left, left_full.index(1), 1, other, 0, then, BLOCK_N, HALF, PAGE, 0)
        row -= 2 * BLOCK_N
        phase = phase ^ 1


@gluon.jit
def finish(out, stride_oh, heads, head, acc, total, PART: gl.constexpr, HALF: gl.constexpr,
           LSE: gl.constexpr):  # fmt: skip
    layout: gl.constexpr = acc.type.layout
    some = total > 0.0
    acc = acc * (1.0 / gl.where(some, total, 1.0))[:, None]
    m = head + gl.arange(0, 64, gl.SliceLayout(1, layout))
    e = PART * HALF + gl.arange(0, HALF, gl.SliceLayout(0, layout))
    mask = m < heads
    if LSE:
        mask = mask & some
    rows = out + (m * stride_oh)[:, None] + e[None, :]
    gl.store(rows, acc.to(out.dtype.element_ty), mask=mask[:, None] & (e >= 0)[None, :])


@gluon.jit
def seesaw_left(given, HALF: gl.constexpr, BLOCK_N: gl.constexpr, LSE: gl.constexpr):
    (out, lse, stride_oh, stride_lh, heads, scale, head, begin, end, q_left, q_right, weights,
     factors, left, right, rope, q_full, left_full, right_full, left_empty, right_empty, signals,
     ) = given  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    o_row: gl.constexpr = gl.SliceLayout(1, o_layout)
    q_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    blocks = gl.cdiv(end - begin, BLOCK_N)
    pairs = gl.cdiv(blocks, 2)
    maximum = gl.full([64], -1e30, gl.float32, row_layout)
    total = gl.zeros([64], gl.float32, row_layout)
    acc = gl.zeros([64, HALF], gl.float32, o_layout)
    zero = gl.zeros([64, BLOCK_N], gl.float32, layout)
    phase = 0
    mbarrier.wait(q_full, 0, pred=blocks > 0)
    q_rope = weights.index(0).load(q_layout)
    mbarrier.arrive(signals.index(4), count=1)
    mbarrier.wait(signals.index(4), 0)
    mbarrier.wait(left_full.index(0), 0, pred=blocks > 0)
    mbarrier.wait(right_full.index(0), 0, pred=blocks > 0)
    s = warpgroup_mma(
        q_left.index(0), left.index(0).permute((1, 0)), zero, use_acc=False, is_async=True
    )
    s = warpgroup_mma(q_right.index(0), right.index(0).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(q_rope, rope.index(0).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
    rest = end - begin - (blocks - 1) * BLOCK_N
    s = gl.where((n < rest)[None, :], s, float("-inf"))
    if (blocks > 0) & (rest < BLOCK_N):
        clear_rows(left.index(0), rest)
        fence_async_shared()
    for i in range(pairs):
        p, factor, maximum, parts = softmax(s, maximum, scale, False)
        factors.index(0).store(factor)
        factors.index(1).store(maximum)
        mbarrier.arrive(signals.index(0), count=1)
        p = p.to(weights.dtype)
        held = gl.convert_layout(p, p_layout)
        acc = acc * gl.convert_layout(factor, o_row)[:, None]
        acc = warpgroup_mma(held, left.index(0), acc, is_async=True)
        total = total * factor + gl.convert_layout(gl.sum(parts, 1), row_layout)
        acc, held, p = warpgroup_mma_wait(0, deps=(acc, held, p))
        mbarrier.arrive(left_empty.index(0), count=1)
        mbarrier.wait(signals.index(1), phase)
        factor = factors.index(2).load(row_layout)
        maximum = factors.index(3).load(row_layout)
        weights.index(0).store((p.to(gl.float32) * factor[:, None]).to(weights.dtype))
        fence_async_shared()
        mbarrier.arrive(signals.index(2), count=1)
        total = total * factor
        acc = acc * gl.convert_layout(factor, o_row)[:, None]
        mbarrier.wait(signals.index(3), phase)
        mbarrier.wait(left_full.index(1), phase)
        acc = warpgroup_mma(weights.index(1), left.index(1), acc, is_async=True)
        phase = phase ^ 1
        none = i >> 30
        more = i + 1 < pairs
        mbarrier.wait(left_full.index(0), phase, pred=more)
        s = warpgroup_mma(
            q_left.index(none), left.index(none).permute((1, 0)), zero, use_acc=False, is_async=True
        )
        acc = warpgroup_mma_wait(1, deps=(acc,))
        mbarrier.arrive(left_empty.index(1), count=1)
        mbarrier.wait(right_full.index(0), phase, pred=more)
        s = warpgroup_mma(q_right.index(none), right.index(none).permute((1, 0)), s, is_async=True)
        s = warpgroup_mma(q_rope, rope.index(none).permute((1, 0)), s, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
    factors.index(0).store(total)
    mbarrier.arrive(signals.index(5), count=1)
    mbarrier.wait(signals.index(5), 0)
    total = total + factors.index(2).load(row_layout)
    if LSE:
        m = head + gl.arange(0, 64, row_layout)
        value = maximum + gl.log2(gl.where(total > 0.0, total, 1.0))
        value = gl.where(total > 0.0, value, float("-inf"))
        gl.store(lse + m * stride_lh, value, mask=m < heads)
    finish(out, stride_oh, heads, head, acc, gl.convert_layout(total, o_row), 0, HALF, LSE)


@gluon.jit
def seesaw_right(given, HALF: gl.constexpr, BLOCK_N: gl.constexpr, LSE: gl.constexpr):
    (out, lse, stride_oh, stride_lh, heads, scale, head, begin, end, q_left, q_right, weights,
     factors, left, right, rope, q_full, left_full, right_full, left_empty, right_empty, signals,
     ) = given  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    o_row: gl.constexpr = gl.SliceLayout(1, o_layout)
    q_layout: gl.constexpr = gl.DotOperandLayout(0, layout, 2)
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    blocks = gl.cdiv(end - begin, BLOCK_N)
    pairs = gl.cdiv(blocks, 2)
    total = gl.zeros([64], gl.float32, row_layout)
    acc = gl.zeros([64, HALF], gl.float32, o_layout)
    zero = gl.zeros([64, BLOCK_N], gl.float32, layout)
    phase = 0
    mbarrier.wait(q_full, 0, pred=blocks > 0)
    q_rope = weights.index(0).load(q_layout)
    mbarrier.arrive(signals.index(4), count=1)
    mbarrier.wait(signals.index(4), 0)
    mbarrier.wait(right_full.index(1), 0, pred=blocks > 0)
    mbarrier.wait(left_full.index(1), 0, pred=blocks > 0)
    s = warpgroup_mma(
        q_right.index(0), right.index(1).permute((1, 0)), zero, use_acc=False, is_async=True
    )
    s = warpgroup_mma(q_rope, rope.index(1).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma(q_left.index(0), left.index(1).permute((1, 0)), s, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    rest = end - begin - (blocks - 1) * BLOCK_N
    for i in range(pairs):
        if 2 * i + 1 == blocks:
            s = gl.full([64, BLOCK_N], float("-inf"), gl.float32, layout)
        mbarrier.wait(signals.index(0), phase)
        before = factors.index(0).load(row_layout)
        maximum = factors.index(1).load(row_layout)
        p, factor, maximum, parts = softmax(s, maximum, scale, False)
        factors.index(2).store(factor)
        factors.index(3).store(maximum)
        mbarrier.arrive(signals.index(1), count=1)
        p = p.to(weights.dtype)
        held = gl.convert_layout(p, p_layout)
        factor = factor * before
        acc = acc * gl.convert_layout(factor, o_row)[:, None]
        acc = warpgroup_mma(held, right.index(1), acc, is_async=True)
        weights.index(1).store(p)
        fence_async_shared()
        mbarrier.arrive(signals.index(3), count=1)
        total = total * factor + gl.convert_layout(gl.sum(parts, 1), row_layout)
        mbarrier.wait(signals.index(2), phase)
        mbarrier.wait(right_full.index(0), phase)
        if i == 0:
            if rest < BLOCK_N:
                clear_rows(right.index(0), rest)
                fence_async_shared()
        acc = warpgroup_mma(weights.index(0), right.index(0), acc, is_async=True)
        acc, held = warpgroup_mma_wait(1, deps=(acc, held))
        mbarrier.arrive(right_empty.index(1), count=1)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(right_empty.index(0), count=1)
        phase = phase ^ 1
        more = i + 1 < pairs
        mbarrier.wait(right_full.index(1), phase, pred=more)
        s = warpgroup_mma(
            q_right.index(0), right.index(1).permute((1, 0)), zero, use_acc=False, is_async=True
        )
        s = warpgroup_mma(q_rope, rope.index(1).permute((1, 0)), s, is_async=True)
        mbarrier.wait(left_full.index(1), phase, pred=more)
        s = warpgroup_mma(q_left.index(0), left.index(1).permute((1, 0)), s, is_async=True)
        s = warpgroup_mma_wait(0, deps=(s,))
    factors.index(2).store(total)
    mbarrier.arrive(signals.index(5), count=1)
    mbarrier.wait(signals.index(5), 0)
    total = total + factors.index(0).load(row_layout)
    finish(out, stride_oh, heads, head, acc, gl.convert_layout(total, o_row), 1, HALF, LSE)


@gluon.jit
def mla_decode_seesaw(
    q, cache, block_table, context_len, out, lse,
    stride_qs, stride_qh, stride_cb, stride_cn, stride_table,
    stride_os, stride_oh, stride_split, stride_ls, stride_lh,
    sequences, heads, head_blocks, splits, cache_blocks, scale,
    DV: gl.constexpr, PAGE: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    REGISTERS: gl.constexpr, HELD: gl.constexpr,
):  # fmt: skip
    LSE: gl.constexpr = lse is not None
    HALF: gl.constexpr = DV // 2
    dtype: gl.constexpr = q.dtype.element_ty
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
    q_right = gl.allocate_shared_memory(dtype, [1, 64, HALF], tile)
    left = gl.allocate_shared_memory(dtype, [2, BLOCK_N, HALF], tile)
    right = gl.allocate_shared_memory(dtype, [2, BLOCK_N, HALF], tile)
    rope = gl.allocate_shared_memory(dtype, [2, BLOCK_N, COLUMNS], tile)
    weights = gl.allocate_shared_memory(dtype, [2, 64, BLOCK_N], tile)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    factors = gl.allocate_shared_memory(gl.float32, [4, 64], plain)
    barrier: gl.constexpr = mbarrier.MBarrierLayout()
    q_full = gl.allocate_shared_memory(gl.int64, [1], barrier)
    left_full = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    right_full = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    left_empty = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    right_empty = gl.allocate_shared_memory(gl.int64, [2, 1], barrier)
    signals = gl.allocate_shared_memory(gl.int64, [6, 1], barrier)
    mbarrier.init(q_full, count=3)
    for i in gl.static_range(2):
        mbarrier.init(left_full.index(i), count=1)
        mbarrier.init(right_full.index(i), count=2)
        mbarrier.init(left_empty.index(i), count=1)
        mbarrier.init(right_empty.index(i), count=1)
    for i in gl.static_range(6):
        mbarrier.init(signals.index(i), count=2 if i >= 4 else 1)
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
        q_rows, cache_rows, table, sequence, head, begin, end, q_left, q_right, weights, left,
        right, rope, q_full, left_full, right_full, left_empty, right_empty,
    )  # fmt: skip
    both = (
        out, lse_or_q, stride_oh, stride_lh, heads, scale, head, begin, end, q_left, q_right,
        weights, factors, left, right, rope, q_full, left_full, right_full, left_empty, right_empty,
        signals,
    )  # fmt: skip
    gl.warp_specialize(
        [
            (seesaw_left, (both, HALF, BLOCK_N, LSE)),
            (seesaw_right, (both, HALF, BLOCK_N, LSE)),
            (copy_pairs, (copy, HALF, BLOCK_N, PAGE)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip
