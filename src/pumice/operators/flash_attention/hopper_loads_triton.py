# mypy: ignore-errors
"""The warp that copies, of Hopper's attention kernel: it takes tiles from the counter, tells the
others which, and fills the rings of queries, keys and values by the copy engine (TMA)."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
)

from pumice.operators.flash_attention.hopper_tiles_triton import (
    COLUMNS,
    CONSUMERS,
    advance,
    copy_rows,
    find_tile,
    kept,
    key_range,
    leave,
    reinterpret,
    take_tile,
    tell,
)
from pumice.operators.triton.gluon_names_triton import async_load


@gluon.jit
def find_pages(table, row, keys, N: gl.constexpr, PAGE: gl.constexpr):
    """The blocks of a cache that N keys from number `row` on lie in, one a lane; −1 where there are
    no keys."""
    BOX: gl.constexpr = min(PAGE, N)
    lane = gl.arange(0, 32, gl.BlockedLayout([1], [32], [1], [0]))
    start = row + lane * BOX
    inside = (lane < N // BOX) & (start >= 0) & (start < keys)
    return gl.load(table + start // PAGE, mask=inside, other=-1)


@gluon.jit
def load_rows(
    rows, ring, bar, slot, row, head, pages,
    N: gl.constexpr, D: gl.constexpr, PAGE: gl.constexpr, FIRST: gl.constexpr = 0,
):  # fmt: skip
    """N rows from number `row` on of a head, D columns from FIRST on, into a slot of a ring, by the
    copy engine. With PAGE, of the sequence whose `pages` were found; what lies outside the tensor
    is zero."""
    parts: gl.constexpr = D // COLUMNS
    mbarrier.expect(bar, N * D * 2)
    if PAGE > 0:
        BOX: gl.constexpr = min(PAGE, N)
        COUNT: gl.constexpr = N // BOX
        shape: gl.constexpr = [ring.shape[0] * parts * COUNT, 1, BOX, 1, COLUMNS]
        boxes = reinterpret(ring, rows.dtype, shape, rows.layout)
        lane = gl.arange(0, 32, pages.type.layout)
        for i in gl.static_range(COUNT):
            page = gl.max(gl.where(lane == i, pages, -1), 0)
            for part in gl.static_range(parts):
                target = boxes.index((slot * parts + part) * COUNT + i)
                async_load(rows, [page, row % PAGE, head, FIRST + part * COLUMNS], bar, target)
    else:
        shape: gl.constexpr = [ring.shape[0] * parts, N, 1, COLUMNS]
        boxes = reinterpret(ring, rows.dtype, shape, rows.layout)
        for part in gl.static_range(parts):
            target = boxes.index(slot * parts + part)
            async_load(rows, [row, head, FIRST + part * COLUMNS], bar, target)


@gluon.jit
def load_block(
    block, k_rows, v_rows, k_start, kv_head, v, stride_vb, stride_vt, stride_vh, keys, table, pages,
    k_ring, v_ring, k_full, k_empty, v_full, v_empty, k_slot, k_phase, v_slot, v_phase,
    D: gl.constexpr, DV: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    PAGE: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """A block of keys and its values into the next slots of their rings."""
    row = block * BLOCK_N
    mbarrier.wait(k_empty.index(k_slot), k_phase)
    load_rows(
        k_rows, k_ring, k_full.index(k_slot), k_slot, k_start + row, kv_head, pages,
        BLOCK_N, D, PAGE,
    )  # fmt: skip
    k_slot, k_phase = advance(k_slot, k_phase, STAGES)
    mbarrier.wait(v_empty.index(v_slot), v_phase)
    # What lies behind the last value may be no number, which times nothing is no number.
    if MASKED and row + BLOCK_N > keys:
        base = v + kv_head.to(gl.int64) * kept(stride_vh, keys)
        if PAGE == 0:
            base += k_start.to(gl.int64) * kept(stride_vt, keys)
        copy_rows(
            v_ring, v_slot, base, kept(stride_vt, keys), row, keys, table, kept(stride_vb, keys),
            BLOCK_N, DV, PAGE,
        )  # fmt: skip
        async_copy.commit_group()
        async_copy.wait_group(0)
        fence_async_shared()
        mbarrier.arrive(v_full.index(v_slot), count=1)
    else:
        load_rows(
            v_rows, v_ring, v_full.index(v_slot), v_slot, k_start + row, kv_head, pages,
            BLOCK_N, DV, PAGE,
        )  # fmt: skip
    v_slot, v_phase = advance(v_slot, v_phase, STAGES)
    return k_slot, k_phase, v_slot, v_phase


@gluon.jit
def load_queries(rows, ring, bar, slot, row, head, D: gl.constexpr):
    """A tile's queries."""
    parts: gl.constexpr = D // COLUMNS
    shape: gl.constexpr = [ring.shape[0] * parts, 64, 1, COLUMNS]
    boxes = reinterpret(ring, rows.dtype, shape, rows.layout)
    mbarrier.expect(bar, CONSUMERS * 64 * D * 2)
    for i in gl.static_range(CONSUMERS * parts):
        target = boxes.index(slot * (CONSUMERS * parts) + i)
        async_load(rows, [row + i // parts * 64, head, i % parts * COLUMNS], bar, target)


@gluon.jit
def load_tiles(
    given,
    D: gl.constexpr, DV: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr, Q_STAGES: gl.constexpr, BLOCK_S: gl.constexpr, PAGE: gl.constexpr,
    WINDOW: gl.constexpr, BOUNDED: gl.constexpr,
):  # fmt: skip
    """The copying warp: all tiles of this program."""
    (order, q_rows, k_rows, v_rows, v, table, stride_vb, stride_vt, stride_vh, stride_table, left,
     right, notes, q_ring, k_ring, v_ring, told, q_full, q_empty, k_full, k_empty, v_full,
     v_empty) = given  # fmt: skip
    ROWS: gl.constexpr = 64 * CONSUMERS
    k_slot = 0
    k_phase = 1  # a fresh barrier lets the wait for the phase before its first one pass
    v_slot = 0
    v_phase = 1
    q_slot = 0
    q_phase = 1
    found, first, queries, keys, q_start, k_start, head, kv_head = find_tile(
        gl.program_id(0), order, ROWS, BLOCK_S, PAGE, BOUNDED
    )
    while found:
        begin, end, _, _ = key_range(
            first, ROWS, queries, keys, left, right, BLOCK_N, WINDOW, BOUNDED
        )
        own = table  # the sequence's row
        if PAGE > 0:
            own += k_start.to(gl.int64) * stride_table
            k_start = k_start * 0
            pages = find_pages(own, (end - 1) * BLOCK_N, keys, BLOCK_N, PAGE)
        else:
            pages = 0
        mbarrier.wait(q_empty.index(q_slot), q_phase)
        tell(notes, q_slot, found, first, queries, keys, q_start, head)
        mbarrier.arrive(told.index(q_slot), count=1)
        load_queries(q_rows, q_ring, q_full.index(q_slot), q_slot, q_start + first, head, D)
        q_slot, q_phase = advance(q_slot, q_phase, Q_STAGES)
        k_slot, k_phase, v_slot, v_phase = load_block(
            end - 1, k_rows, v_rows, k_start, kv_head, v, stride_vb, stride_vt, stride_vh, keys,
            own, pages, k_ring, v_ring, k_full, k_empty, v_full, v_empty, k_slot, k_phase, v_slot,
            v_phase, D, DV, BLOCK_N, STAGES, PAGE, True,
        )  # fmt: skip
        following = take_tile(order[0])
        if PAGE > 0:
            pages = find_pages(own, (end - 2) * BLOCK_N, keys, BLOCK_N, PAGE)
        for i in range(begin, end - 1):
            now = pages
            if PAGE > 0:
                # A block ahead, so that nobody waits for them.
                pages = find_pages(own, (begin + end - 3 - i) * BLOCK_N, keys, BLOCK_N, PAGE)
            k_slot, k_phase, v_slot, v_phase = load_block(
                begin + end - 2 - i, k_rows, v_rows, k_start, kv_head, v, stride_vb, stride_vt,
                stride_vh, keys, own, now, k_ring, v_ring, k_full, k_empty, v_full, v_empty, k_slot,
                k_phase, v_slot, v_phase, D, DV, BLOCK_N, STAGES, PAGE, False,
            )  # fmt: skip
        found, first, queries, keys, q_start, k_start, head, kv_head = find_tile(
            following, order, ROWS, BLOCK_S, PAGE, BOUNDED
        )
    mbarrier.wait(q_empty.index(q_slot), q_phase)
    tell(notes, q_slot, found, first, queries, keys, q_start, head)
    mbarrier.arrive(told.index(q_slot), count=1)
    leave(order[0])
