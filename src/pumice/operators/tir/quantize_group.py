"""Symmetric int8 quantization of activations in groups of 32, in registers."""

from __future__ import annotations

from typing import Any

import tvm.tirx as tir
from tvm.tirx.script.builder import ir as T

from pumice.operators.quantized import GROUP, LIMIT, CodeForm
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

#: Parameters of a kernel with quantized output, in launch order.
QUANTIZED = {"x_codes": "int8", "x_scales": "float32", "x_sums": "float32"}
FLOAT = {"out": "float32"}


class QuantizedOutput:
    """The three arrays of a quantized activation [rows, width], and how one group of 32 is written.

    The arrays are those of `operators/quantized.py`.
    """

    def __init__(self, kernel: Any, width: int, form: CodeForm) -> None:
        self.codes, self.scales, self.sums = (kernel[name] for name in QUANTIZED)
        self.groups = width // GROUP
        self.width = width
        self.parts = GROUP // form.sum_group
        self.planes = form.planes
        self.limit = float(LIMIT[form.planes])

    def _put(self, index: Any, integers: Any) -> None:
        """Stores 32 whole numbers as int8."""
        codes = cast(cast(integers, "int32", GROUP), "int8", GROUP)
        store(self.codes, index, codes, GROUP)

    def store(self, row: Any, group: Any, x: Any) -> None:
        """Quantizes one float32x32 into group `group` of `row`."""
        bits = T.reinterpret("int32x32", x) & T.broadcast(T.int32(0x7FFFFFFF), GROUP)
        amax = let(horizontal_max(let(T.reinterpret("float32x32", bits)), GROUP))
        # Below the smallest normal float the reciprocal would overflow; such a group is zero.
        tiny = amax < T.float32(1e-30)
        scale = let(tir.Select(tiny, T.float32(0), amax / T.float32(self.limit)))
        inverse = let(tir.Select(tiny, T.float32(0), T.float32(self.limit) / amax))
        magic = splat(ROUND, GROUP)
        rounded = let(T.fma(x, splat(inverse, GROUP), magic) - magic)
        where = let(row * self.groups + group)
        if self.planes == 1:
            self._put(where * GROUP, rounded)
        else:
            # Multiplying by a power of two is exact, so the low part is the exact rest.
            high = let(T.fma(rounded, splat(1 / 128, GROUP), magic) - magic)
            self._put(where * (2 * GROUP), high)
            self._put(where * (2 * GROUP) + GROUP, T.fma(high, splat(-128.0, GROUP), rounded))
        store(self.scales, where, scale, 1)
        lanes = GROUP // self.parts
        for part in range(self.parts):
            piece = (
                rounded
                if self.parts == 1
                else pick(rounded, list(range(part * lanes, (part + 1) * lanes)))
            )
            store(self.sums, where * self.parts + part, horizontal_sum(piece, lanes), 1)
