"""Attention for decoding: one query a sequence, the context cut into splits (flash-decoding, Dao et
al. 2023).

A task is a split of one sequence's context with all heads that share a kv head: it reads float16
keys and values once, straight from the cache into registers, and leaves a partial result
(unnormalised output, sum, maximum) in the workspace; a second phase combines the splits of each
head. Splits depend on the context's length alone, so a sequence's result does not depend on its
batch or on the number of threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.attention.cache_tir import PagedCache, Result
from pumice.operators.attention.problem import UNIT, Problem
from pumice.operators.attention.softmax_tir import NOTHING, RowState, softmax_rows
from pumice.operators.base import KernelSource
from pumice.operators.tir.builder import SIZE, kernel, symbol_name, tasks, when
from pumice.operators.tir.math import exp2
from pumice.operators.tir.vector import (
    cast,
    horizontal_sum,
    let,
    load,
    pieces,
    prefetch,
    splat,
    store,
    sweep,
)

SPLITS = 32  # most splits of one context
SPLIT_UNITS = 2  # fewest units of keys in a split: below 64 tokens a task costs more than it saves
STRETCH = 8  # units of keys between two rescalings
UNROLL = 4  # steps along head_dim
PARALLEL_HEADS = 128  # from so many heads on, the second phase is worth a fork and join


class Tile:
    """Register tiles: `rows` heads at a time, `keys` columns of scores, `columns` of the output."""

    def __init__(self, p: Problem) -> None:
        most = p.registers // 2
        parts = -(-p.group // most)
        self.rows = -(-p.group // parts)
        # Scores need room for a factor a row beside the accumulators: with more than two thirds of
        # them LLVM spills.
        self.budget = p.registers * 2 // 3
        self.keys = _widest(p, self.rows, UNIT, self.budget)
        self.columns = _widest(p, self.rows, 64, p.registers)
        self.parts = [(r, min(self.rows, p.group - r)) for r in range(0, p.group, self.rows)]
        self.partial = p.dim + 2  # output, sum, maximum


def _widest(p: Problem, rows: int, width: int, registers: int) -> int:
    while rows * width > registers * p.lanes and width > p.lanes:
        width //= 2
    return width


def decode(p: Problem) -> KernelSource:
    """The kernel for one query a sequence."""
    symbol = symbol_name("attention", p.lanes, "decode", **p.symbol_parts())
    parameters = {
        "q": "float32", "k_cache": "float16", "v_cache": "float16", "query_start": "int32",
        "context_len": "int32", "block_table": "int32", "workspace": "float32", **p.parameters(),
        "T": SIZE, "S": SIZE, "M": SIZE,
    }  # fmt: skip
    tile = Tile(p)
    with kernel(symbol, parameters) as k:
        total = T.alloc_buffer((1,), "int32")
        ends = let(k["S"] * (p.heads * SPLITS * tile.partial))
        T.buffer_store(total, T.int32(0), [0])
        with T.serial(0, k["S"]) as s:
            T.buffer_store(total, total[0] + Split(p, k, s).count, [0])
            T.buffer_store(k["workspace"], T.cast(total[0], "float32"), [ends + s])
        count = let(total[0])
        with tasks(count * p.kv_heads, parallel=True) as task:
            _split(p, tile, k, ends, let(task // p.kv_heads), let(task % p.kv_heads))
        heads = let(k["S"] * p.heads)
        with T.If(heads >= PARALLEL_HEADS):
            with T.Then():
                with tasks(heads, parallel=True) as h:
                    _combine(p, tile, k, let(h // p.heads), let(h % p.heads))
            with T.Else():
                with tasks(heads, parallel=False) as h:
                    _combine(p, tile, k, let(h // p.heads), let(h % p.heads))

    def workspace(bounds: Mapping[str, int]) -> int:
        return 4 * bounds["S"] * (p.heads * SPLITS * tile.partial + 1)

    return k.source(workspace)


class Split:
    """How a sequence's visible units are cut: `count` splits of `units` each, from unit `first` to
    `last`."""

    def __init__(self, p: Problem, k: Any, s: Any) -> None:
        self.length = let(k["context_len"][s])
        self.last = let((self.length + (UNIT - 1)) // UNIT)
        self.first = let(T.max(self.length - p.window, 0) // UNIT) if p.window else 0
        visible = let(self.last - self.first)
        self.units = let(T.max((visible + (SPLITS - 1)) // SPLITS, SPLIT_UNITS))
        self.count = let((visible + (self.units - 1)) // self.units)


def _split(p: Problem, tile: Tile, k: Any, ends: Any, wanted: Any, kv_head: Any) -> None:
    """Split number `wanted` of all, for one kv head: partial results of its `group` heads.

    ends: where the workspace has, for each sequence, how many splits it and those before it have.
    """
    found = T.alloc_buffer((2,), "int32")  # sequence, splits before it
    for i in range(2):
        T.buffer_store(found, T.int32(0), [i])
    with T.serial(0, k["S"]) as s:
        end = let(T.cast(k["workspace"][ends + s], "int32"))
        with when(end <= wanted):
            T.buffer_store(found, s + 1, [0])
            T.buffer_store(found, end, [1])
    s, index = let(found[0]), let(wanted - found[1])

    split, cache, work = Split(p, k, s), PagedCache(p, k), k["workspace"]
    row_at = let(k["query_start"][s] * (p.heads * p.dim) + kv_head * (p.group * p.dim))
    out_at = let(((s * SPLITS + index) * p.heads + kv_head * p.group) * tile.partial)
    scores = T.alloc_buffer((p.group * STRETCH * UNIT,), "float32")
    state = RowState(p, p.group)
    with T.serial(0, p.group) as r:
        for j, lanes in sweep(p.dim, UNIT):
            store(work, out_at + r * tile.partial + j, splat(0.0, lanes), lanes)
    begin = let(split.first + index * split.units)
    end = let(T.min(begin + split.units, split.last))
    with T.serial(0, (end - begin + (STRETCH - 1)) // STRETCH) as stretch:
        base = let(begin + stretch * STRETCH)
        units = let(T.min(end - base, STRETCH))
        with T.serial(0, units) as u:
            key_at, value_at = cache.locate(s, kv_head, base + u)
            next_at, _ = cache.locate(*_following(p, k, s, kv_head, split, begin, end, base + u))
            ahead = ((cache.keys, let(next_at)), (cache.values, let(value_at)))
            _scores(p, tile, k, row_at, cache.keys, key_at, scores, u, ahead)
        high = let(split.length - base * UNIT)
        low = let(high - p.window) if p.window else None
        bounds = (low, high)
        softmax_rows(p, scores, STRETCH * UNIT, p.group, units, state, lambda r: bounds)
        with T.serial(0, units) as u:
            _, value_at = cache.locate(s, kv_head, base + u)
            valid = let(T.min(high - u * UNIT, UNIT))
            _outputs(p, tile, scores, cache.values, value_at, work, out_at, u, valid, state)
    with T.serial(0, p.group) as r:
        at = out_at + r * tile.partial + p.dim
        sums = load(state.total, r * p.lanes, p.lanes)
        T.buffer_store(work, horizontal_sum(sums, p.lanes), [at])
        T.buffer_store(work, state.top[r], [at + 1])


def _following(
    p: Problem, k: Any, s: Any, kv_head: Any, split: Split, begin: Any, end: Any, unit: Any
) -> tuple[Any, Any, Any]:
    """(sequence, kv head, unit) of the keys that are read after a unit's, in the next task too:
    another kv head's, the next split's, or those of the next sequence."""
    more = let(unit + 1 < end)
    heads_left = let(kv_head + 1 < p.kv_heads)
    splits_left = let(end < split.last)
    last = T.if_then_else(splits_left, end, T.int32(0))
    following = T.if_then_else(splits_left, s, T.min(s + 1, k["S"] - 1))
    return (
        let(T.if_then_else(T.Or(more, heads_left), s, following)),
        let(T.if_then_else(more, kv_head, T.if_then_else(heads_left, kv_head + 1, T.int32(0)))),
        let(T.if_then_else(more, unit + 1, T.if_then_else(heads_left, begin, last))),
    )


def _scores(
    p: Problem, tile: Tile, k: Any, row_at: Any, keys: Any, at: Any, scores: Any, u: Any,
    ahead: tuple[tuple[Any, Any], ...],
) -> None:  # fmt: skip
    """scores[group, u·32 : u·32 + 32] = logit_scale · q · k of one unit, while the memory brings
    what comes next.

    ahead: (buffer, offset) of the units to prefetch. Blocks lie anywhere, so the processor's own
    prefetcher stops at each one's end.
    """
    vectors = tile.keys // p.lanes

    def panel(first: int, rows: int, column: Any, fetch: bool) -> None:
        # Few rows have too few accumulators to hide the latency of a multiply-add: alternate
        # between sets.
        sets = 2 if 2 * rows * vectors <= tile.budget else 1
        acc = [Registers(p.lanes, rows, vectors) for _ in range(sets)]
        with T.serial(0, p.dim // UNROLL) as step:
            for i in range(UNROLL):
                d = step * UNROLL + i
                if fetch:
                    for buffer, offset in ahead:
                        prefetch(buffer, offset + d * UNIT)
                x = [k["q"][row_at + (first + r) * p.dim + d] for r in range(rows)]
                acc[i % sets].add_outer(x, keys, at + (d * p.block_size + column))
        for r in range(rows):
            where = let((first + r) * (STRETCH * UNIT) + u * UNIT + column)
            for v in range(vectors):
                total = acc[0].get(r, v)
                for other in acc[1:]:
                    total = total + other.get(r, v)
                scaled = total * splat(p.logit_scale, p.lanes)
                store(scores, where + v * p.lanes, scaled, p.lanes)

    for part, (first, rows) in enumerate(tile.parts):
        panels = UNIT // tile.keys
        if part == 0:
            panel(first, rows, 0, True)
        done = 1 if part == 0 else 0
        if panels > done:
            with T.serial(0, panels - done) as i:
                panel(first, rows, let((i + done) * tile.keys), False)


def _outputs(
    p: Problem, tile: Tile, scores: Any, values: Any, at: Any, work: Any, out_at: Any, u: Any,
    valid: Any, state: RowState,
) -> None:  # fmt: skip
    """Partial outputs += p · v over one unit's `valid` keys; the stretch's first unit applies the
    rescaling factors."""
    whole = let(valid // 4)
    for first, rows in tile.parts:
        factors = [
            let(T.if_then_else(u == 0, state.alpha[first + r], T.float32(1))) for r in range(rows)
        ]
        for start, lanes, count in pieces(p.dim, tile.columns):
            with T.serial(0, count) as panel:
                column = let(start + panel * lanes)
                width = min(lanes, p.lanes)
                acc = Registers(width, rows, lanes // width)
                places = [let(out_at + (first + r) * tile.partial + column) for r in range(rows)]
                acc.read(work, places, factors)

                row_at = [(first + r) * (STRETCH * UNIT) + u * UNIT for r in range(rows)]
                with T.serial(0, whole) as step:
                    for i in range(4):
                        key = step * 4 + i
                        x = [scores[place + key] for place in row_at]
                        acc.add_outer(x, values, at + (key * p.dim + column))
                with T.serial(0, valid - whole * 4) as rest:
                    key = whole * 4 + rest
                    x = [scores[place + key] for place in row_at]
                    acc.add_outer(x, values, at + (key * p.dim + column))
                acc.write(work, places)


class Registers:
    """A tile of accumulators, rows by vectors of `lanes`, zero at first."""

    def __init__(self, lanes: int, rows: int, vectors: int) -> None:
        self.lanes, self.rows, self.vectors = lanes, rows, vectors
        self.cells = [
            [T.alloc_buffer((lanes,), "float32") for _ in range(vectors)] for _ in range(rows)
        ]
        for row in self.cells:
            for cell in row:
                store(cell, 0, splat(0.0, lanes), lanes)

    def get(self, r: int, v: int) -> Any:
        return load(self.cells[r][v], 0, self.lanes)

    def add_outer(self, x: list[Any], half: Any, at: Any) -> None:
        """acc[r] += x[r] · half[at …], float16 converted a register at a time: all rows use it
        before the next one comes, as the register file has no room for more."""
        factors = [let(splat(value, self.lanes)) for value in x]
        for v in range(self.vectors):
            y = let(cast(load(half, at + v * self.lanes, self.lanes), "float32", self.lanes))
            for r in range(self.rows):
                store(self.cells[r][v], 0, T.fma(factors[r], y, self.get(r, v)), self.lanes)

    def read(self, buffer: Any, places: list[Any], factors: list[Any]) -> None:
        """acc[r] = buffer[places[r] …] · factors[r]."""
        for r in range(self.rows):
            for v in range(self.vectors):
                value = load(buffer, places[r] + v * self.lanes, self.lanes)
                store(self.cells[r][v], 0, value * splat(factors[r], self.lanes), self.lanes)

    def write(self, buffer: Any, places: list[Any]) -> None:
        for r in range(self.rows):
            for v in range(self.vectors):
                store(buffer, places[r] + v * self.lanes, self.get(r, v), self.lanes)


def _combine(p: Problem, tile: Tile, k: Any, s: Any, head: Any) -> None:
    """out = Σ 2^(mᵢ − m)·oᵢ / Σ 2^(mᵢ − m)·lᵢ over the splits of a sequence, m the largest mᵢ."""
    work, count = k["workspace"], Split(p, k, s).count
    stride = p.heads * tile.partial
    at = let((s * (SPLITS * p.heads) + head) * tile.partial)
    top = T.alloc_buffer((1,), "float32")
    total = T.alloc_buffer((1,), "float32")
    T.buffer_store(top, T.float32(NOTHING), [0])
    T.buffer_store(total, T.float32(0), [0])
    with T.serial(0, count) as i:
        T.buffer_store(top, T.max(top[0], work[at + i * stride + (p.dim + 1)]), [0])
    # Summed up in the first split's place.
    first = let(exp2(work[at + (p.dim + 1)] - top[0], 1))
    T.buffer_store(total, first * work[at + p.dim], [0])
    for j, lanes in sweep(p.dim, UNIT):
        store(work, at + j, load(work, at + j, lanes) * splat(first, lanes), lanes)
    with T.serial(0, count - 1) as i:
        here = let(at + (i + 1) * stride)
        weight = let(exp2(work[here + (p.dim + 1)] - top[0], 1))
        T.buffer_store(total, T.fma(weight, work[here + p.dim], total[0]), [0])
        for j, lanes in sweep(p.dim, UNIT):
            x = T.fma(splat(weight, lanes), load(work, here + j, lanes), load(work, at + j, lanes))
            store(work, at + j, x, lanes)
    factor = let(T.float32(1) / total[0])
    Result(p, k).store(k["query_start"][s], head, work, at, factor)
