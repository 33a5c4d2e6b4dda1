# mypy: ignore-errors
"""Pieces of Hopper's attention kernel: which tile comes next, which keys it sees, and how rows at a
ragged end get into shared memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from pumice.operators.triton.gluon_names_triton import begin_copy

_descriptor = gl.shared_memory_descriptor
reinterpret = getattr(_descriptor, "reinterpret", None) or _descriptor._reinterpret  # up to 3.8
CONSUMERS = gl.constexpr(2)  # warp groups that compute
COLUMNS = gl.constexpr(64)  # that the copy engine swizzles together, 128 bytes


@gluon.jit
def fresh(values):
    """The same int32 tensor, of which the compiler knows nothing. What follows from parameters
    alone it would work out before the warp groups part, and keep in memory until then."""
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [values], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def kept(parameter, start):
    """A parameter, `fresh` as well: no `start` of a sequence is negative."""
    return gl.where(start >= 0, parameter, 0)


@gluon.jit
def find_sequence(starts, tile, sequences, ROWS: gl.constexpr, BLOCK_S: gl.constexpr):
    """The sequence that tile number `tile` belongs to (`softmax_triton.find_sequence`)."""
    if BLOCK_S > 0:
        layout: gl.constexpr = gl.BlockedLayout([BLOCK_S // 32], [32], [gl.num_warps()], [0])
        s = gl.arange(0, BLOCK_S, layout)
        first = gl.load(starts + s, mask=s < sequences, other=0) // ROWS + s
        low = gl.sum(((first <= tile) & (s < sequences)).to(gl.int32), 0)
    else:
        low = tile * 0
        high = sequences
        while low < high:
            middle = (low + high) // 2
            if gl.load(starts + middle) // ROWS + middle <= tile:
                low = middle + 1
            else:
                high = middle
    return low - 1


@gluon.jit
def take_tile(counters):
    """The number of a tile that no program has taken yet. Every program begins with the one of its
    own number."""
    return gl.num_programs(0) + gl.atomic_add(counters, 1, sem="relaxed")


@gluon.jit
def leave(counters):
    """The last program sets the counters to zero again. Each takes one tile too many before."""
    before = gl.atomic_add(counters + 1, 1, sem="acq_rel")
    if before == gl.num_programs(0) - 1:
        gl.store(counters, 0)
        gl.store(counters + 1, 0)


@gluon.jit
def find_tile(
    index,
    order,
    ROWS: gl.constexpr,
    BLOCK_S: gl.constexpr,
    PAGE: gl.constexpr,
    BOUNDED: gl.constexpr,
):
    """Tile number `index`, or the next one that this program takes where that has no rows:
    (whether there is one, first row of the tile in its sequence, queries, keys, first query, first
    key (with PAGE: number) of the sequence, query head, key head).

    `section` heads come after the other, whose keys and values stay in the cache together. total:
    tiles · heads. share: tiles · section.
    """
    counters, cu_seqlens_q, cu_seqlens_k, sequences, tiles, total, group, section, share = order
    found = index < 0
    more = index >= 0
    first = index * 0
    queries = index * 0
    keys = index * 0
    q_start = index * 0
    k_start = index * 0
    head = index * 0
    kv_head = index * 0
    while more:
        if index < total:
            inside = index % share
            tile = inside // section
            if BOUNDED:
                # Under a causal mask later tiles see more keys: the long ones start first.
                tile = tiles - 1 - tile
            head = index // share * section + inside % section
            kv_head = head // group
            sequence = find_sequence(cu_seqlens_q, tile, sequences, ROWS, BLOCK_S)
            q_start = gl.load(cu_seqlens_q + sequence)
            queries = gl.load(cu_seqlens_q + sequence + 1) - q_start
            if PAGE > 0:
                k_start = sequence
                keys = gl.load(cu_seqlens_k + sequence)
            else:
                k_start = gl.load(cu_seqlens_k + sequence)
                keys = gl.load(cu_seqlens_k + sequence + 1) - k_start
            first = (tile - q_start // ROWS - sequence) * ROWS
            found = first < queries
            more = first >= queries
            if more:
                index = take_tile(counters)
        else:
            more = index < 0
    return found, first, queries, keys, q_start, k_start, head, kv_head


@gluon.jit
def tell(notes, slot, found, first, queries, keys, q_start, head):
    """Leaves a tile for those who compute, in notes[6 · slot …]."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    zero = gl.zeros([32], gl.int32, layout)
    notes.index(slot * 6).store(zero + found.to(gl.int32))
    notes.index(slot * 6 + 1).store(zero + first)
    notes.index(slot * 6 + 2).store(zero + queries)
    notes.index(slot * 6 + 3).store(zero + keys)
    notes.index(slot * 6 + 4).store(zero + q_start)
    notes.index(slot * 6 + 5).store(zero + head)


@gluon.jit
def read_note(notes, index):
    """A number that all lanes of a warp read."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    return gl.max(notes.index(index).load(layout), 0)


@gluon.jit
def hear(notes, slot):
    """What `tell` left."""
    found = read_note(notes, slot * 6) > 0
    first = read_note(notes, slot * 6 + 1)
    queries = read_note(notes, slot * 6 + 2)
    keys = read_note(notes, slot * 6 + 3)
    q_start = read_note(notes, slot * 6 + 4)
    head = read_note(notes, slot * 6 + 5)
    return found, first, queries, keys, q_start, head


@gluon.jit
def key_range(
    first, rows, queries, keys, left, right,
    BLOCK_N: gl.constexpr, WINDOW: gl.constexpr, BOUNDED: gl.constexpr,
):  # fmt: skip
    """Blocks of keys that rows first … first + rows − 1 see: (the first one, that after the last,
    first and end of those that all of them see whole). At least one block, of masked keys."""
    lowest = first + (keys - queries)
    highest = gl.minimum(first + rows, queries) - 1 + (keys - queries)
    end = keys
    whole_end = keys // BLOCK_N
    begin = keys * 0
    whole_begin = keys * 0
    if BOUNDED:
        end = gl.maximum(gl.minimum(highest + right + 1, keys), 0)
        whole_end = gl.minimum(gl.maximum(lowest + right + 1, 0), keys) // BLOCK_N
    if WINDOW:
        begin = gl.minimum(gl.maximum(lowest - left, 0), end) // BLOCK_N
        whole_begin = (gl.maximum(highest - left, 0) + BLOCK_N - 1) // BLOCK_N
    end = gl.maximum((end + BLOCK_N - 1) // BLOCK_N, begin + 1)
    whole_end = gl.minimum(gl.maximum(whole_end, begin), end)
    whole_begin = gl.minimum(gl.maximum(whole_begin, begin), whole_end)
    return begin, end, whole_begin, whole_end


@gluon.jit
def advance(slot, phase, STAGES: gl.constexpr):
    slot += 1
    wrapped = slot == STAGES
    return gl.where(wrapped, 0, slot), phase ^ wrapped.to(gl.int32)


@gluon.jit
def copy_rows(
    ring, slot, base, stride, first, end, table, stride_block,
    N: gl.constexpr, D: gl.constexpr, PAGE: gl.constexpr,
):  # fmt: skip
    """N rows from number `first` on of a matrix into a slot of a ring, by one warp; zeros from row
    `end` on. With PAGE, row r lies in block table[r // PAGE] at row r % PAGE.

    Whoever copies has few registers: the shared memory is filled in order, 1 KiB at a time.
    """
    COUNT: gl.constexpr = D // COLUMNS * N // 8
    parts = reinterpret(ring, ring.dtype, [ring.shape[0] * COUNT, 8, COLUMNS], ring.layout)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [1, 1], [1, 0])
    r = gl.arange(0, 8, gl.SliceLayout(1, layout))
    d = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    for i in range(COUNT):
        row = first + i % (N // 8) * 8 + r
        inside = row < end
        if PAGE > 0:
            block = gl.load(table + row // PAGE, mask=inside, other=0)
            rows = base + (block.to(gl.int64) * stride_block + row % PAGE * stride)
        else:
            rows = base + row.to(gl.int64) * stride
        rows += i // (N // 8) * COLUMNS
        mask = inside[:, None] & (d >= 0)[None, :]
        begin_copy(parts.index(slot * COUNT + i), rows[:, None] + d[None, :], mask=mask)
