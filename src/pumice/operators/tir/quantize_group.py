"""Symmetric integer quantization of activations, a group of 32 at a time, in registers."""

from __future__ import annotations

from collections.abc import Callable
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
    load,
    pick,
    reinterpret,
    splat,
    splat_int,
    store,
)

#: Parameters of a kernel with quantized output, in launch order.
QUANTIZED = {"x_codes": "int8", "x_scales": "float32", "x_sums": "float32"}
FLOAT = {"out": "float32"}


def absolute(x: Any, lanes: int) -> Any:
    """|x| of float32 lanes."""
    bits = reinterpret(x, "int32", lanes) & splat_int(0x7FFFFFFF, lanes)
    return reinterpret(bits, "float32", lanes)


def largest_magnitude(groups: Any, part: Callable[[Any], Any]) -> Any:
    """max|part(i)| over `groups` vectors of 32 values, as a float32 scalar."""
    most = T.alloc_buffer((GROUP,), "float32")
    store(most, 0, splat(0.0, GROUP), GROUP)
    with T.serial(0, groups) as i:
        store(most, 0, T.max(load(most, 0, GROUP), absolute(part(i), GROUP)), GROUP)
    return let(horizontal_max(load(most, 0, GROUP), GROUP))


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

    @property
    def whole_row(self) -> bool:
        """Whether a scale is that of a row: `start_row` gives it, before the row's groups."""
        return self.planes == 2

    def start_row(self, row: Any, groups: Any, part: Callable[[Any], Any]) -> Any:
        """Stores the scale of a row of `part(group)` float32x32; returns what `store` wants."""
        return self._scale(row, largest_magnitude(groups, part))

    def _scale(self, index: Any, amax: Any) -> Any:
        """Stores a scale; returns 1 / scale."""
        # Below the smallest normal float the reciprocal would overflow; such values are zero.
        tiny = amax < T.float32(1e-30)
        scale = tir.Select(tiny, T.float32(0), amax / T.float32(self.limit))
        store(self.scales, index, scale, 1)
        return let(tir.Select(tiny, T.float32(0), T.float32(self.limit) / amax))

    def store(self, row: Any, group: Any, x: Any, inverse: Any = None) -> None:
        """Quantizes one float32x32 into group `group` of `row`. inverse: of the row's scale."""
        where = let(row * self.groups + group)
        if inverse is None:
            inverse = self._scale(where, let(horizontal_max(let(absolute(x, GROUP)), GROUP)))
        magic = splat(ROUND, GROUP)
        rounded = let(T.fma(x, splat(inverse, GROUP), magic) - magic)
        if self.planes == 1:
            self._put(where * GROUP, rounded)
        else:
            # Multiplying by a power of two is exact, so the low part is the exact rest.
            high = let(T.fma(rounded, splat(1 / 128, GROUP), magic) - magic)
            self._put(where * (2 * GROUP), high)
            self._put(where * (2 * GROUP) + GROUP, T.fma(high, splat(-128.0, GROUP), rounded))
        lanes = GROUP // self.parts
        for part in range(self.parts):
            piece = (
                rounded
                if self.parts == 1
                else pick(rounded, list(range(part * lanes, (part + 1) * lanes)))
            )
            store(self.sums, where * self.parts + part, horizontal_sum(piece, lanes), 1)
