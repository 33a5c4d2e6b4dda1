"""Where a unit of 32 keys lies in the paged cache, and where a row of output goes."""

from __future__ import annotations

from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.attention.problem import UNIT, Problem
from pumice.operators.quantized import GROUP
from pumice.operators.tir.quantize_group import QuantizedOutput
from pumice.operators.tir.vector import let, load, splat, store, sweep


class PagedCache:
    """The caches of a layer and the block table. Offsets are int64: a cache may pass 2³¹
    elements."""

    def __init__(self, p: Problem, k: Any) -> None:
        self.p = p
        self.keys, self.values, self.table, self.width = (
            k["k_cache"], k["v_cache"], k["block_table"], k["M"],
        )  # fmt: skip

    def locate(self, sequence: Any, kv_head: Any, unit: Any) -> tuple[Any, Any]:
        """Offsets of a unit's first key element (stride block_size along head_dim) and first value
        element."""
        p = self.p
        per_block = p.block_size // UNIT
        block = T.cast(self.table[sequence * self.width + unit // per_block], "int64")
        base = let((block * p.kv_heads + kv_head) * (p.dim * p.block_size))
        if per_block == 1:
            return base, base
        offset = let((unit % per_block) * UNIT)
        return base + offset, base + offset * p.dim


class Result:
    """The output array(s) [T, heads·head_dim], float32 or quantized head by head."""

    def __init__(self, p: Problem, k: Any) -> None:
        self.p = p
        width = p.heads * p.dim
        self.codes = QuantizedOutput(k, width, p.form) if p.form else None
        self.out = None if self.codes else k["out"]

    def store(self, token: Any, head: Any, values: Any, start: Any, factor: Any) -> None:
        """Writes values[start : start + dim] · factor."""
        p = self.p
        for j, lanes in sweep(p.dim, GROUP):
            x = let(load(values, start + j, lanes) * splat(factor, lanes))
            if self.codes:
                self.codes.store(token, head * (p.dim // GROUP) + j // GROUP, x)
            else:
                store(self.out, token * (p.heads * p.dim) + head * p.dim + j, x, lanes)
