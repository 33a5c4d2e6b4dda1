"""Many tokens: a block of rows is unpacked once into scratch, which then meets a chunk of tokens.

Floors: T·N·K multiply-adds over the dot unit's rate, and what turns a group's integer sums into
floats. A register tile of `tokens` × `blocks` accumulators reuses every code vector `tokens`
times and every activation word `blocks` times, so that loads (two a cycle) stay behind
arithmetic. A chunk of activations stays in the second cache level while the rows pass by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.linear.int8_problem import WORDS, Problem
from pumice.operators.tir.builder import tasks, when
from pumice.operators.tir.vector import let, load, splat, splat_int, store

CHUNK_BYTES = 1 << 18  # activation codes of a chunk of tokens
UNROLL = 2  # words of k that one turn of the innermost loop takes


@dataclass(frozen=True)
class _Scratch:
    """codes uint32 [group, word, block, row]; scales and offsets float32 [group, sub, block,
    row].
    """

    codes: Any
    scales: Any
    offsets: Any


def panel(p: Problem, config: Mapping[str, int]) -> None:
    count, width = int(config["tokens"]), int(config["blocks"])
    r, inputs, tokens = p.rows, p.k["K"], p.k["T"]
    panels = let((p.blocks + (width - 1)) // width)
    # 32 to 256 tokens fit; chunks are equal (to a multiple of 8), as threads take equally many.
    fitting = CHUNK_BYTES // p.planes // inputs
    most = let(T.max(T.int32(32), T.min(T.int32(256), fitting)) // 8 * 8)
    chunks = let((tokens + (most - 1)) // most)
    chunk = let((tokens + (chunks - 1)) // T.max(chunks, T.int32(1)))
    chunk = let((chunk + 7) // 8 * 8)
    with tasks(chunks * panels, parallel=True) as task:
        vectors = let(p.groups * (r * width))
        scratch = _Scratch(
            T.alloc_buffer((vectors * WORDS,), "uint32"),
            T.alloc_buffer((vectors * p.subs,), "float32"),
            T.alloc_buffer((vectors * p.subs,), "float32"),
        )
        start = let(task // panels * chunk)
        block = let(task % panels * width)
        stop = let(T.min(start + chunk, tokens))
        with when(block + width <= p.blocks):
            _rows(p, scratch, block, start, stop, count, width)
        if width > 1:
            with when(block + width > p.blocks):
                with T.serial(0, p.blocks - block) as rest:
                    _rows(p, scratch, let(block + rest), start, stop, count, 1)


def _rows(
    p: Problem, s: _Scratch, block: Any, start: Any, stop: Any, count: int, width: int
) -> None:
    """One panel of row blocks for the tokens of a chunk."""
    r = p.rows
    with T.serial(0, p.groups) as g:
        for b in range(width):
            row_block = let(block + b)
            for j, codes in enumerate(p.unpack(row_block, g)):
                store(s.codes, ((g * WORDS + j) * width + b) * r, p.unit.prepare(codes), r)
            for sub in range(p.subs):
                scales, offsets = p.scale(row_block, g, sub)
                where = let(((g * p.subs + sub) * width + b) * r)
                store(s.scales, where, scales, r)
                if offsets is not None:
                    store(s.offsets, where, offsets, r)
    with T.serial(0, (stop - start + (count - 1)) // count) as tile:
        _tile(p, s, block, let(start + tile * count), count, width)


def _tile(p: Problem, s: _Scratch, block: Any, token: Any, count: int, width: int) -> None:
    r = p.rows
    acc = [T.alloc_buffer((r,), "float32") for _ in range(count * width)]
    for one in acc:
        store(one, 0, splat(0.0, r), r)
    with T.serial(0, p.groups) as g:
        for sub in range(p.subs):
            totals = _dots(p, s, token, g, sub, count, width)
            where = [let(((g * p.subs + sub) * width + b) * r) for b in range(width)]
            for m in range(count):
                activation = p.activation(token + m, g, sub)
                for b in range(width):
                    offsets = load(s.offsets, where[b], r) if p.needs_sums else None
                    weight = (load(s.scales, where[b], r), offsets)
                    one = acc[m * width + b]
                    total = totals[m * width + b]
                    store(one, 0, p.add(load(one, 0, r), total, weight, activation), r)
    p.epilogue.store([load(one, 0, r) for one in acc], token, block, count, width)


def _dots(
    p: Problem, s: _Scratch, token: Any, g: Any, sub: int, count: int, width: int
) -> list[Any]:
    """int32 sums [tokens, blocks] of a weight group.

    The words of a group are a loop that LLVM cannot unroll, since it cannot know the count:
    unrolled, it reorders the group by token and spills all code vectors.
    """
    r, unit = p.rows, p.unit
    words = WORDS // p.subs
    carried = unit.steps >= words  # a whole group fits the partial form
    unroll = min(UNROLL, unit.steps)
    turns = let(p.inputs // p.subs // (4 * unroll))
    lanes, dtype = unit.form() if carried else (r, "int32")
    totals: list[Any] = [None] * (count * width)
    cells: list[Any] = []
    for plane in range(p.planes):
        if plane and dtype == "int32":  # the high plane's sums are where the low plane's begin
            for cell, total in zip(cells, totals, strict=True):
                store(cell, 0, total, r)
            totals = [None] * (count * width)
        else:
            cells = [T.alloc_buffer((lanes,), dtype) for _ in range(count * width)]
            for cell in cells:
                store(cell, 0, splat_int(0, lanes, dtype), lanes)
        with T.serial(0, turns) as turn:
            parts: list[Any] = [load(cell, 0, lanes) if carried else None for cell in cells]
            for u in range(unroll):
                j = let(sub * words + turn * unroll + u)
                codes = [
                    let(load(s.codes, ((g * WORDS + j) * width + b) * r, r)) for b in range(width)
                ]
                for m in range(count):
                    x = p.word(token + m, g, plane, j)
                    for b in range(width):
                        index = m * width + b
                        parts[index] = unit.product(codes[b], x, parts[index])
            for cell, part in zip(cells, parts, strict=True):
                total = part if carried else load(cell, 0, lanes) + p.widen(part, plane)
                store(cell, 0, total, lanes)
        for index, cell in enumerate(cells):
            value = load(cell, 0, lanes)
            wide = p.widen(value, plane) if carried else value
            totals[index] = let(wide if totals[index] is None else totals[index] + wide)
    return totals
