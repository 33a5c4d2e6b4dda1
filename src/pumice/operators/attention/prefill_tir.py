"""Attention for ragged batches: register tiles of queries against 32 keys at a time.

A task is a tile of consecutive queries of one sequence, with all heads that share a kv head. Keys
and values of a stretch of the context are converted to float32 once a task, laid out in panels as
wide as a register tile, and used by all rows:
    scores[rows, keys] = Q·K    softmax    O[rows, dim] = alpha·O + P·V
Tasks are ordered by falling context, thread t of n taking t, t + n, …, so that causal work is
balanced.
"""

from __future__ import annotations

import math
from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.attention.cache_tir import PagedCache, Result
from pumice.operators.attention.problem import UNIT, Problem
from pumice.operators.attention.softmax_tir import RowState, softmax_rows
from pumice.operators.base import KernelSource
from pumice.operators.tir.builder import SIZE, kernel, symbol_name, tasks, when
from pumice.operators.tir.vector import cast, horizontal_sum, let, load, splat, store, sweep

STRETCH = 4  # units of keys between two rescalings
TARGET_ROWS = 48  # a tile's rows: enough to spread the conversion of keys and values


class Tile:
    """Sizes of a tile, and its register tile of `mr` rows by `nr` columns."""

    def __init__(self, p: Problem) -> None:
        self.nr = min(UNIT, 2 * p.lanes) if p.lanes > 4 else 16
        self.mr = p.registers * p.lanes // self.nr
        # As few rows as possible are left over in the last register tile.
        step = self.mr // math.gcd(self.mr, p.group)
        self.tokens = max(1, round(TARGET_ROWS / (step * p.group))) * step
        if self.tokens * p.group > 2 * TARGET_ROWS:
            self.tokens = max(1, TARGET_ROWS // p.group)
        self.rows = -(-self.tokens * p.group // self.mr) * self.mr
        self.columns = -(-p.dim // self.nr) * self.nr  # of O, padded
        self.keys = STRETCH * UNIT


def prefill(p: Problem) -> KernelSource:
    """The kernel for any ragged batch."""
    symbol = symbol_name("attention", p.lanes, "extend", **p.symbol_parts())
    parameters = {
        "q": "float32", "k_cache": "float16", "v_cache": "float16", "query_start": "int32",
        "context_len": "int32", "block_table": "int32", **p.parameters(),
        "T": SIZE, "S": SIZE, "M": SIZE,
    }  # fmt: skip
    tile = Tile(p)
    with kernel(symbol, parameters) as k:
        start, context = k["query_start"], k["context_len"]
        tiles = T.alloc_buffer((1,), "int32")
        T.buffer_store(tiles, T.int32(0), [0])
        with T.serial(0, k["S"]) as s:
            count = start[s + 1] - start[s]
            T.buffer_store(tiles, tiles[0] + (count + (tile.tokens - 1)) // tile.tokens, [0])
        total = let(tiles[0])
        with tasks(total * p.kv_heads, parallel=True, interleave=True) as task:
            kv_head = let(task % p.kv_heads)
            wanted = let(task // p.kv_heads)
            s, index = _find(k, tile, wanted)
            count = let(start[s + 1] - start[s])
            # Later tiles see more context: they come first.
            index = let((count - 1) // tile.tokens - index)
            first = let(index * tile.tokens)
            _tile(
                p, tile, k, s, kv_head, start[s] + first,
                position=let(context[s] - count + first),
                tokens=let(T.min(count - first, tile.tokens)),
            )  # fmt: skip
    return k.source()


def _find(k: Any, tile: Tile, wanted: Any) -> tuple[Any, Any]:
    """The sequence that tile number `wanted` belongs to, and the tile's number within it."""
    start = k["query_start"]
    found = T.alloc_buffer((2,), "int32")  # sequence, tiles before it
    seen = T.alloc_buffer((1,), "int32")
    T.buffer_store(seen, T.int32(0), [0])
    with T.serial(0, k["S"]) as s:
        count = (start[s + 1] - start[s] + (tile.tokens - 1)) // tile.tokens
        with when((wanted >= seen[0]) & (wanted < seen[0] + count)):
            T.buffer_store(found, s, [0])
            T.buffer_store(found, wanted - seen[0], [1])
        T.buffer_store(seen, seen[0] + count, [0])
    return let(found[0]), let(found[1])


def _tile(
    p: Problem, tile: Tile, k: Any, s: Any, kv_head: Any, token: Any, *, position: Any, tokens: Any
) -> None:
    cache, result = PagedCache(p, k), Result(p, k)
    rows = let(tokens * p.group)
    strips = let((rows + (tile.mr - 1)) // tile.mr)
    queries = T.alloc_buffer((tile.rows * p.dim,), "float32")
    keys = T.alloc_buffer((UNIT * p.dim,), "float32")
    values = T.alloc_buffer((tile.keys * tile.columns,), "float32")
    scores = T.alloc_buffer((tile.rows * tile.keys,), "float32")
    out = T.alloc_buffer((tile.rows * tile.columns,), "float32")
    state = RowState(p, tile.rows)
    _load_queries(p, k, queries, token, kv_head, tokens, rows, strips * tile.mr)
    with T.serial(0, tile.rows * tile.columns // tile.nr) as i:
        store(out, i * tile.nr, splat(0.0, tile.nr), tile.nr)
    if tile.columns != p.dim:
        with T.serial(0, tile.keys * tile.columns // tile.nr) as i:
            store(values, i * tile.nr, splat(0.0, tile.nr), tile.nr)

    end = let(position + tokens)  # positions that some query sees end here
    unit_end = let((end + (UNIT - 1)) // UNIT)
    unit_start = let(T.max(position - (p.window - 1), 0) // UNIT) if p.window else 0
    with T.serial(0, (unit_end - unit_start + (STRETCH - 1)) // STRETCH) as stretch:
        begin = let(unit_start + stretch * STRETCH)
        units = let(T.min(unit_end - begin, STRETCH))
        with T.serial(0, units) as u:
            key_at, value_at = cache.locate(s, kv_head, begin + u)
            _convert_keys(p, tile, cache.keys, key_at, keys)
            valid = let(T.min(end - (begin + u) * UNIT, UNIT))
            _convert_values(p, tile, cache.values, value_at, values, u, valid)
            for panel in range(UNIT // tile.nr):
                with T.serial(0, strips) as strip:
                    _multiply(
                        tile, queries, strip * (tile.mr * p.dim), p.dim,
                        keys, panel * (p.dim * tile.nr), p.dim,
                        scores, strip * (tile.mr * tile.keys) + u * UNIT + panel * tile.nr,
                        tile.keys, None,
                    )  # fmt: skip

        def visible(r: Any) -> tuple[Any, Any]:
            here = let(position + r // p.group - begin * UNIT)
            return (let(here - (p.window - 1)) if p.window else None), let(here + 1)

        softmax_rows(p, scores, tile.keys, rows, units, state, visible)
        for panel in range(tile.columns // tile.nr):
            with T.serial(0, strips) as strip:
                _multiply(
                    tile, scores, strip * (tile.mr * tile.keys), tile.keys,
                    values, panel * (tile.keys * tile.nr), units * UNIT,
                    out, strip * (tile.mr * tile.columns) + panel * tile.nr, tile.columns,
                    (state.alpha, strip * tile.mr),
                )  # fmt: skip
    with T.serial(0, rows) as r:
        total = horizontal_sum(load(state.total, r * p.lanes, p.lanes), p.lanes)
        factor = let(T.float32(1) / total)
        head = kv_head * p.group + r % p.group
        result.store(token + r // p.group, head, out, r * tile.columns, factor)


def _load_queries(
    p: Problem, k: Any, queries: Any, token: Any, kv_head: Any, tokens: Any, rows: Any, padded: Any
) -> None:
    """Copies the tile's queries, scaled; rows that fill the last register tile are zero."""
    run = p.group * p.dim  # the heads of a kv head are next to each other
    with T.serial(0, tokens) as t:
        source = let((token + t) * (p.heads * p.dim) + kv_head * run)
        for j, lanes in sweep(run, UNIT):
            x = load(k["q"], source + j, lanes) * splat(p.logit_scale, lanes)
            store(queries, t * run + j, x, lanes)
    with T.serial(0, padded - rows) as r:
        for j, lanes in sweep(p.dim, UNIT):
            store(queries, (rows + r) * p.dim + j, splat(0.0, lanes), lanes)


def _convert_keys(p: Problem, tile: Tile, source: Any, at: Any, keys: Any) -> None:
    """A unit of keys to float32 panels [32/nr][dim][nr]."""
    with T.serial(0, p.dim) as d:
        for panel in range(UNIT // tile.nr):
            x = load(source, at + d * p.block_size + panel * tile.nr, tile.nr)
            where = panel * (p.dim * tile.nr) + d * tile.nr
            store(keys, where, cast(x, "float32", tile.nr), tile.nr)


def _convert_values(
    p: Problem, tile: Tile, source: Any, at: Any, values: Any, u: Any, valid: Any
) -> None:
    """A unit of values to float32 panels [columns/nr][keys][nr]; keys that are not there are zero,
    whatever the cache holds."""
    step = tile.keys * tile.nr

    def put(key: Any, convert: bool) -> None:
        for panel in range(tile.columns // tile.nr):
            done = 0
            while done < min(tile.nr, p.dim - panel * tile.nr):
                lanes = tile.nr
                while lanes > p.dim - panel * tile.nr - done or done % lanes:
                    lanes //= 2
                column = panel * tile.nr + done
                x = splat(0.0, lanes)
                if convert:
                    x = cast(load(source, at + key * p.dim + column, lanes), "float32", lanes)
                where = panel * step + (u * UNIT + key) * tile.nr + done
                store(values, where, x, lanes)
                done += lanes

    with T.serial(0, valid) as key:
        put(key, True)
    with T.serial(0, UNIT - valid) as key:
        put(valid + key, False)


def _multiply(
    tile: Tile, a: Any, a_at: Any, a_stride: Any, b: Any, b_at: Any, depth: Any, c: Any, c_at: Any,
    c_stride: int, scale: tuple[Any, Any] | None,
) -> None:  # fmt: skip
    """C[mr, nr] = (scale[mr] · C, or 0) + A[mr, depth] · B[depth, nr], C in registers. depth is a
    multiple of 4 (or of 8)."""
    a_at, b_at, c_at = let(a_at), let(b_at), let(c_at)
    accumulators = []
    for r in range(tile.mr):
        acc = T.alloc_buffer((tile.nr,), "float32")
        start = splat(0.0, tile.nr)
        if scale is not None:
            factor = splat(scale[0][scale[1] + r], tile.nr)
            start = load(c, c_at + r * c_stride, tile.nr) * factor
        store(acc, 0, start, tile.nr)
        accumulators.append(acc)
    unroll = 4
    with T.serial(0, depth // unroll) as step:
        for i in range(unroll):
            k = step * unroll + i
            row = let(load(b, b_at + k * tile.nr, tile.nr))
            for r, acc in enumerate(accumulators):
                x = splat(a[a_at + r * a_stride + k], tile.nr)
                store(acc, 0, T.fma(x, row, load(acc, 0, tile.nr)), tile.nr)
    for r, acc in enumerate(accumulators):
        store(c, c_at + r * c_stride, load(acc, 0, tile.nr), tile.nr)
