"""The end of a matmul tile: bias, residual, and a store that respects the last row block."""

from __future__ import annotations

from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.tir.builder import when
from pumice.operators.tir.vector import let, load, splat, store


class Epilogue:
    """Writes a tile [tokens, row blocks, rows] of sums to out[T, N], with bias and residual.
    scaled: sums are first multiplied by their token's x_scales[T]. fused: in one operation with the
    first term that is added, as `store_whole` does; a kernel that calls it needs this everywhere.

    The tile passes through memory, so that one copy of this code serves every token and row block:
    it runs once a tile, and unrolled it would be most of a kernel's code.
    """

    def __init__(
        self,
        k: Any,
        rows: int,
        *,
        bias: bool,
        residual: bool,
        scaled: bool = False,
        fused: bool = False,
    ) -> None:
        self.k, self.rows, self.scaled, self.fused = k, rows, scaled, fused
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
                scale = self._scale(token + m)
                for b in range(blocks):
                    row = let(first + b * r)
                    where = let((token + m) * n + row)
                    self._put(values[m * blocks + b], scale, row, where, r)
        with when(first + blocks * r > n):
            self.store(values, token, block, tokens, blocks)

    def store(self, values: list[Any], token: Any, block: Any, tokens: int, blocks: int) -> None:
        """values: token-major vectors of `rows` sums; only rows below N are written."""
        r = self.rows
        tile = T.alloc_buffer((tokens * blocks * r,), "float32")
        for index, value in enumerate(values):
            store(tile, index * r, value, r)
        with T.serial(0, tokens) as m:
            scale = self._scale(token + m) if self.fused else None
            if self.scaled and not self.fused:
                factor = splat(self.k["x_scales"][token + m], r)
                for block_index in range(blocks):
                    at = let((m * blocks + block_index) * r)
                    store(tile, at, load(tile, at, r) * factor, r)
            with T.serial(0, blocks) as b:
                at = let((m * blocks + b) * r)
                self._row_block(tile, at, scale, let(token + m), let(block + b))

    def _scale(self, token: Any) -> Any | None:
        return let(self.k["x_scales"][token]) if self.scaled else None

    def _row_block(self, tile: Any, source: Any, scale: Any | None, token: Any, block: Any) -> None:
        r, n = self.rows, self.k["N"]
        first = let(block * r)
        where = let(token * n + first)

        def piece(lane: Any, lanes: int) -> None:
            total = load(tile, source + lane, lanes)
            self._put(total, scale, first + lane, where + lane, lanes)

        with when(first + r <= n):
            total = load(tile, source, r)
            self._put(total, scale, first, where, r)
        # Halves, quarters ... of a vector: a loop over lanes becomes a call of memcpy, around which
        # LLVM keeps a tile's accumulators in memory.
        rest = let(n - first)
        with when(rest < r):
            size = r // 2
            while size:
                with when(T.bitwise_and(rest, T.int32(size)) != 0):
                    piece(let(rest // (2 * size) * (2 * size)), size)
                size //= 2

    def _put(self, total: Any, scale: Any | None, row: Any, where: Any, lanes: int) -> None:
        """Which sum is fused with the product is said here, not left to LLVM: a row is the same
        bit for bit in every tile."""
        terms = []
        if self.bias:
            terms.append(load(self.k["bias"], row, lanes))
        if self.residual:
            terms.append(load(self.k["residual"], where, lanes))
        if scale is not None:
            factor = splat(scale, lanes)
            total = T.fma(total, factor, terms.pop(0)) if terms else total * factor
        for term in terms:
            total = total + term
        store(self.k["out"], where, total, lanes)
