# mypy: ignore-errors
"""Sorts (token, choice) entries by expert into whole blocks, on the device.

Three launches over any number of entries: counts of each chunk, their running sums, places. The
order inside an expert is that of the entries, so that two runs are equal. Entries whose expert is
outside 0 … E-1 (another device's) get no place.
"""

import triton
import triton.language as tl


@triton.jit
def _one_hot(ids, entries, ENTRIES, E, experts, last):
    """[entries, experts]: 1 where an entry chose an expert. Entries from `last` on are not here.

    Arithmetic, not comparisons: on AMD a comparison a number takes two scalar registers each."""
    chosen = tl.load(ids + entries, mask=entries < last, other=-1)
    real = (chosen >= 0) & (chosen < E)
    chosen = tl.where(real, chosen, -1)
    return 1 - tl.minimum(tl.abs(chosen[:, None] - experts[None, :]), 1), real


@triton.jit
def align_count(
    ids, counts, order, ENTRIES, E, P, chunk, fill,
    BE: tl.constexpr, SUB: tl.constexpr, FILL: tl.constexpr,
):  # fmt: skip
    """One program, one chunk of entries: how many chose each expert. It also empties its share
    (`fill` places) of the order: ENTRIES marks a place without an entry."""
    pid = tl.program_id(0)
    experts = tl.arange(0, BE)
    first = pid * chunk
    last = tl.minimum(first + chunk, ENTRIES)
    total = tl.zeros((BE,), dtype=tl.int32)
    for at in range(first, last, SUB):
        hot, _ = _one_hot(ids, at + tl.arange(0, SUB), ENTRIES, E, experts, last)
        total += tl.sum(hot, 0)
    tl.store(counts + pid * E + experts, total, mask=experts < E)
    end = tl.minimum((pid + 1) * fill, P)
    for at in range(pid * fill, end, FILL):
        places = at + tl.arange(0, FILL)
        tl.store(order + places, tl.zeros((FILL,), dtype=tl.int32) + ENTRIES, mask=places < end)


@triton.jit
def align_scan(
    counts, starts, owners, used, chunks, E, blocks,
    BM: tl.constexpr, BE: tl.constexpr, CB: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """One program: counts become the number of entries in chunks before; starts [E], each expert's
    first place; owners [blocks], each block's expert; used [1], places up to the last block's end.
    """
    experts = tl.arange(0, BE)
    real = experts < E
    total = tl.zeros((BE,), dtype=tl.int32)
    for c in range(0, chunks, CB):
        rows = c + tl.arange(0, CB)
        mask = (rows < chunks)[:, None] & real[None, :]
        at = counts + rows[:, None] * E + experts[None, :]
        tile = tl.load(at, mask=mask, other=0)
        tl.store(at, tl.cumsum(tile, 0) - tile + total[None, :], mask=mask)
        total += tl.sum(tile, 0)
    padded = (total + BM - 1) // BM * BM
    ends = tl.cumsum(padded, 0)
    tl.store(starts + experts, ends - padded, mask=real)
    tl.store(used, tl.sum(padded, 0))
    for b in range(0, blocks, BB):
        places = (b + tl.arange(0, BB)) * BM
        before = places[:, None] - ends[None, :] + 1  # experts that end before a block: positive
        owner = tl.sum(tl.minimum(tl.maximum(before, 0), 1), 1)
        mask = b + tl.arange(0, BB) < blocks
        tl.store(owners + b + tl.arange(0, BB), tl.minimum(owner, E - 1), mask=mask)


@triton.jit
def align_place(
    ids, counts, starts, order, places, ENTRIES, E, chunk, BE: tl.constexpr, SUB: tl.constexpr
):
    """One program, one chunk: every entry goes to its place, which places [entries] notes."""
    pid = tl.program_id(0)
    experts = tl.arange(0, BE)
    real = experts < E
    next_place = tl.load(starts + experts, mask=real, other=0)
    next_place += tl.load(counts + pid * E + experts, mask=real, other=0)
    first = pid * chunk
    last = tl.minimum(first + chunk, ENTRIES)
    for at in range(first, last, SUB):
        entries = at + tl.arange(0, SUB)
        hot, valid = _one_hot(ids, entries, ENTRIES, E, experts, last)
        place = tl.sum(hot * (tl.cumsum(hot, 0) - 1 + next_place[None, :]), 1)
        tl.store(order + place, entries, mask=valid)
        if places is not None:
            tl.store(places + entries, place, mask=valid)
        next_place += tl.sum(hot, 0)
