"""Three tokens and more where there are 32 vector registers and a dot product that adds into int32:
tiles of 8 tokens by one row block, whose codes are unpacked from memory for each tile.

A tile's 8 float sums, 8 integer sums and 8 code vectors all stay in registers. Eight sums in a row
cover the latency of the dot product, each code vector serves 8 tokens, and an activation word is
an operand of its product. Unpacking is a tenth of a tile's instructions, and they run on other
pipes. Floor: per group of 32, row block and token, a product for each plane and word, and the two
multiply-adds that scale: on Zen 4 all of them share two pipes, which this comes within 5% of.
"""

from __future__ import annotations

from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.linear.int8_direct import prefetch_codes, tile_of
from pumice.operators.linear.int8_problem import WORDS, Problem
from pumice.operators.linear.prefetch import LEVEL_1, prefetch
from pumice.operators.tir.builder import tasks, when
from pumice.operators.tir.vector import let, load, splat, store

COUNT, REST = 8, 4  # tokens of a tile, and of the last one where so few are left
CHUNK_BYTES = 1 << 18  # activation codes of the tokens that a row block meets: a part of level 2


def wide(p: Problem) -> None:
    """Chunks of tokens times row blocks in parallel."""
    tokens = p.k["T"]
    fitting = CHUNK_BYTES // p.planes // p.k["K"]
    most = let(T.max(T.int32(4 * COUNT), fitting) // COUNT)  # tiles of a chunk
    tiles = let((tokens + (COUNT - 1)) // COUNT)
    chunks = let((tiles + (most - 1)) // most)
    per = let((tiles + (chunks - 1)) // T.max(chunks, T.int32(1)))
    whole = let((tokens + (COUNT - 1 - REST)) // COUNT)  # without a last tile of REST tokens
    with tasks(chunks * p.blocks, parallel=True) as task:
        start = let(task // p.blocks * per)
        block = let(task % p.blocks)
        with T.serial(0, T.max(T.min(per, whole - start), T.int32(0))) as tile:
            _tile(p, block, let((start + tile) * COUNT))
        with when(T.And(whole < tiles, T.And(start <= whole, whole < start + per))):
            tile_of(p, block, whole * COUNT, REST, 1)


def _tile(p: Problem, block: Any, token: Any) -> None:
    r, out = p.rows, p.k["out"]
    acc = [T.alloc_buffer((r,), "float32") for _ in range(COUNT)]
    for one in acc:
        store(one, 0, splat(0.0, r), r)
    for m in range(COUNT):  # a store that waits for its line holds up those after it
        where = (token + m) * p.k["N"] + block * r
        prefetch(out, where, 4 * r, level=LEVEL_1, write=True)
    with T.serial(0, p.groups) as g:
        prefetch_codes(p, block, g)
        codes = [p.unit.prepare(c) for c in p.unpack(block, g)]
        for sub in range(p.subs):
            totals = _dots(p, codes, token, g, sub)
            weight = p.scale(block, g, sub)
            for m, one in enumerate(acc):
                activation = p.activation(token + m, g, sub)
                store(one, 0, p.add(load(one, 0, r), totals[m], weight, activation), r)
    p.epilogue.store_whole([load(one, 0, r) for one in acc], token, block, COUNT, 1)


def _dots(p: Problem, codes: list[Any], token: Any, g: Any, sub: int) -> list[Any]:
    """int32 sums of a weight group with each token's codes, in the order that they are best run
    in: the high plane's sums, shifted, are where the low plane's begin."""
    words = WORDS // p.subs
    totals: list[Any] = [None] * COUNT
    for plane in range(p.planes):
        if plane:
            totals = [let(p.widen(total, plane - 1)) for total in totals]
        for j in range(sub * words, (sub + 1) * words):
            for m in range(COUNT):
                x = p.word(token + m, g, plane, j)
                totals[m] = p.unit.product(codes[j], x, totals[m])
    return totals
