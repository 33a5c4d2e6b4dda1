"""The end of a matmul tile: bias, residual, and a store that respects the last row block."""

from __future__ import annotations

from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.tir.builder import when
from pumice.operators.tir.vector import let, load, splat, store


class Epilogue:
    """Writes a tile [tokens, row blocks, rows] of sums to out[T, N], with bias and residual.
    scaled: sums are first multiplied by their token's x_scales[T].

    The tile passes through memory, so that one copy of this code serves every token and row block:
    it runs once a tile, and unrolled it would be most of a kernel's code.
    """

    def __init__(
        self, k: Any, rows: int, *, bias: bool, residual: bool, scaled: bool = False
    ) -> None:
        self.k, self.rows, self.scaled = k, rows, scaled
        self.bias, self.residual = bias, residual

    def store_whole(
        self, values: list[Any], token: Any, block: Any, tokens: int, blocks: int
    ) -> None:
        """As `store`, with a copy for tiles that lie within N, which go from registers to memory:
        worth its code where nearly all do, and many pass."""
        r, n = self.rows, self.k["N"]
        first = let(block * r)
        with when(first + blocks * r <= n):
            for m in range(tokens):
                scale = splat(self.k["x_scales"][token + m], r) if self.scaled else None
                for b in range(blocks):
                    value = values[m * blocks + b]
                    row = let(first + b * r)
                    total = value if scale is None else value * scale
                    self._write(total, row, let((token + m) * n + row), r)
        with when(first + blocks * r > n):
            self.store(values, token, block, tokens, blocks)

    def store(self, values: list[Any], token: Any, block: Any, tokens: int, blocks: int) -> None:
        """values: token-major vectors of `rows` sums; only rows below N are written."""
        r = self.rows
        tile = T.alloc_buffer((tokens * blocks * r,), "float32")
        for index, value in enumerate(values):
            store(tile, index * r, value, r)
        with T.serial(0, tokens) as m:
            if self.scaled:
                scale = splat(self.k["x_scales"][token + m], r)
                for block_index in range(blocks):
                    at = let((m * blocks + block_index) * r)
                    store(tile, at, load(tile, at, r) * scale, r)
            with T.serial(0, blocks) as b:
                self._row_block(tile, let((m * blocks + b) * r), let(token + m), let(block + b))

    def _row_block(self, tile: Any, source: Any, token: Any, block: Any) -> None:
        r, n = self.rows, self.k["N"]
        first = let(block * r)
        where = let(token * n + first)
        with when(first + r <= n):
            self._put(tile, source, first, where, r)
        # Halves, quarters ... of a vector: a loop over lanes becomes a call of memcpy, around which
        # LLVM keeps a tile's accumulators in memory.
        rest = let(n - first)
        with when(rest < r):
            size = r // 2
            while size:
                with when(T.bitwise_and(rest, T.int32(size)) != 0):
                    lane = let(rest // (2 * size) * (2 * size))
                    self._put(tile, source + lane, first + lane, where + lane, size)
                size //= 2

    def _put(self, tile: Any, source: Any, row: Any, where: Any, lanes: int) -> None:
        self._write(load(tile, source, lanes), row, where, lanes)

    def _write(self, total: Any, row: Any, where: Any, lanes: int) -> None:
        if self.bias:
            total = total + load(self.k["bias"], row, lanes)
        if self.residual:
            total = total + load(self.k["residual"], where, lanes)
        store(self.k["out"], where, total, lanes)
