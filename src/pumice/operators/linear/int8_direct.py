"""Few tokens: weights are read from memory once, and their codes are unpacked in registers.

The floor is memory bandwidth: each row block is one stream, and nothing is kept of it.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.linear.int8_problem import WORDS, Problem
from pumice.operators.linear.prefetch import prefetch
from pumice.operators.tir.builder import tasks, when
from pumice.operators.tir.vector import let, load, splat, store

# Four pages: the processor's prefetchers stop at the end of one. Measured on a Zen 4 core that
# reads 24 GB/s, two planes: 12 to 14 GB/s without, 11 to 13 into the first level, 18 to 20 so.
AHEAD = 16384  # bytes


def prefetch_codes(p: Problem, block: Any, g: Any) -> None:
    """Asks for what is AHEAD of a group's codes."""
    words = p.fmt.code_bits * p.rows  # uint32 words of a group
    index = (block * p.groups + g) * words + AHEAD // 4
    prefetch(p.k["w.codes"], index, 4 * words)


def direct(p: Problem, count: int, width: int) -> None:
    """Row blocks in parallel, `width` a task; tiles of `count` tokens one after the other."""
    pairs = let(p.blocks // width)
    tiles = let((p.k["T"] + (count - 1)) // count)
    with tasks(pairs, parallel=True) as pair:
        with T.serial(0, tiles) as tile:
            tile_of(p, pair * width, tile * count, count, width)
    if width > 1:
        with when(pairs * width < p.blocks):
            with T.serial(0, tiles) as tile:
                tile_of(p, pairs * width, tile * count, count, 1)


def tile_of(p: Problem, block: Any, token: Any, count: int, width: int) -> None:
    """`count` tokens from `token` on by `width` row blocks from `block` on."""
    r = p.rows
    first, start = let(block), let(token)
    acc = [T.alloc_buffer((r,), "float32") for _ in range(count * width)]
    for one in acc:
        store(one, 0, splat(0.0, r), r)
    with T.serial(0, p.groups) as g:
        for b in range(width):
            prefetch_codes(p, first + b, g)
        codes = [[p.unit.prepare(c) for c in p.unpack(let(first + b), g)] for b in range(width)]
        for sub in range(p.subs):
            for b in range(width):
                weight = p.scale(first + b, g, sub)
                for m in range(count):
                    one = acc[m * width + b]
                    total = _dot(p, codes[b], start + m, g, sub)
                    activation = p.activation(start + m, g, sub)
                    store(one, 0, p.add(load(one, 0, r), total, weight, activation), r)
    p.epilogue.store([load(one, 0, r) for one in acc], start, first, count, width)


def _dot(p: Problem, codes: list[Any], token: Any, g: Any, sub: int) -> Any:
    """int32 dot products of a weight group with one token's codes."""
    per = WORDS // p.subs
    total = None
    for plane in range(p.planes):
        partial = None
        for step in range(per):
            j = sub * per + step
            partial = p.unit.product(codes[j], p.word(token, g, plane, j), partial)
            if (step + 1) % p.unit.steps == 0 or step == per - 1:
                wide = p.widen(partial, plane)
                total = let(wide if total is None else total + wide)
                partial = None
    return total
