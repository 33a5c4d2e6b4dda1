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
def align_scan(counts, totals, taken, chunks, E, CB: tl.constexpr, EB: tl.constexpr):
    """One program, EB experts: counts become the number of entries in chunks before; totals [E],
    each expert's entries; taken [2], zeros."""
    pid = tl.program_id(0)
    experts = pid * EB + tl.arange(0, EB)
    real = experts < E
    total = tl.zeros((EB,), dtype=tl.int32)
    for c in range(0, chunks, CB):
        rows = c + tl.arange(0, CB)
        mask = (rows < chunks)[:, None] & real[None, :]
        at = counts + rows[:, None] * E + experts[None, :]
        tile = tl.load(at, mask=mask, other=0)
        tl.store(at, tl.cumsum(tile, 0) - tile + total[None, :], mask=mask)
        total += tl.sum(tile, 0)
    tl.store(totals + experts, total, mask=real)
    if taken is not None:
        two = tl.arange(0, 2)
        tl.store(taken + two, tl.zeros((2,), dtype=tl.int32), mask=two < 2 * (pid == 0))


@triton.jit
def align_place(
    ids, counts, totals, used, owners, order, places, ENTRIES, E, chunk, blocks, share,
    BM: tl.constexpr, BE: tl.constexpr, SUB: tl.constexpr, BB: tl.constexpr,
):  # fmt: skip
    """One program, one chunk: every entry goes to its place, which places [entries] notes; and its
    share of owners [blocks], each block's expert. used [1]: places up to the last block's end."""
    pid = tl.program_id(0)
    experts = tl.arange(0, BE)
    real = experts < E
    padded = (tl.load(totals + experts, mask=real, other=0) + BM - 1) // BM * BM
    ends = tl.cumsum(padded, 0)
    if pid == 0:
        tl.store(used, tl.sum(padded, 0))
    until = tl.minimum((pid + 1) * share, blocks)
    for b in range(pid * share, until, BB):
        at = b + tl.arange(0, BB)
        before = (at * BM)[:, None] - ends[None, :] + 1  # experts that end before it: positive
        owner = tl.sum(tl.minimum(tl.maximum(before, 0), 1), 1)
        tl.store(owners + at, tl.minimum(owner, E - 1), mask=at < until)
    next_place = ends - padded + tl.load(counts + pid * E + experts, mask=real, other=0)
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
