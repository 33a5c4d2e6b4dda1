"""Symmetric int8 quantization of activations in groups of 32, in registers."""

from __future__ import annotations

from typing import Any

import tvm.tirx as tir
from tvm.tirx.script.builder import ir as T

from pumice.operators.tir.math import ROUND
from pumice.operators.tir.vector import (
    cast,
    horizontal_max,
    horizontal_sum,
    let,
    pick,
    splat,
    store,
)

GROUP = 32

#: Parameters of a kernel with quantized output, in launch order.
QUANTIZED = {"x_codes": "int8", "x_scales": "float32", "x_sums": "float32"}
FLOAT = {"out": "float32"}


class QuantizedOutput:
    """The three arrays of a quantized activation [rows, width], and how one group of 32 is written.

    codes int8 = round-half-even(x / scale) in −127 … 127; scales float32, one a group, max|x| / 127 (0 for a group of zeros);
    sums float32, the integer sum of the codes of every `sum_group` (32 or 16).
    """

    def __init__(self, kernel: Any, width: int, sum_group: int) -> None:
        self.codes, self.scales, self.sums = (kernel[name] for name in QUANTIZED)
        self.groups = width // GROUP
        self.width = width
        self.parts = GROUP // sum_group

    def store(self, row: Any, group: Any, x: Any) -> None:
        """Quantizes one float32x32 into group `group` of `row`."""
        bits = T.reinterpret("int32x32", x) & T.broadcast(T.int32(0x7FFFFFFF), GROUP)
        amax = let(horizontal_max(let(T.reinterpret("float32x32", bits)), GROUP))
        # Below the smallest normal float the reciprocal would overflow; such a group is zero.
        tiny = amax < T.float32(1e-30)
        scale = let(tir.Select(tiny, T.float32(0), amax / T.float32(127)))
        inverse = let(tir.Select(tiny, T.float32(0), T.float32(127) / amax))
        magic = splat(ROUND, GROUP)
        rounded = let(T.fma(x, splat(inverse, GROUP), magic) - magic)
        where = let(row * self.groups + group)
        store(self.codes, where * GROUP, cast(cast(rounded, "int32", GROUP), "int8", GROUP), GROUP)
        store(self.scales, where, scale, 1)
        lanes = GROUP // self.parts
        for part in range(self.parts):
            piece = (
                rounded
                if self.parts == 1
                else pick(rounded, list(range(part * lanes, (part + 1) * lanes)))
            )
            store(self.sums, where * self.parts + part, horizontal_sum(piece, lanes), 1)
