"""Dot products of unsigned codes with signed int8 activations, four to a 32-bit lane, on each
instruction set.

A `DotUnit` multiplies one vector of codes (a lane a row, four k each) with one activation word
that is the same for all rows, and adds to an accumulator. The accumulator's form differs: VNNI
and Arm add into int32 at once; AVX2 adds pairs in int16 first, as many as cannot overflow, and
widens then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import tvm.tirx as tir
from tvm.tirx.script.builder import ir as T

from pumice.operators.tir.vector import let, splat_int
from pumice.targets import Target

ACTIVATION_MAX = 127


def _call(dtype: str, name: str, *arguments: Any) -> Any:
    return T.call_llvm_pure_intrin(dtype, name, *arguments)


def _bytes(value: Any, lanes: int, dtype: str = "int8") -> Any:
    return T.reinterpret(f"{dtype}x{4 * lanes}", value)


class DotUnit(ABC):
    """steps: how many products may be added before `widen` must turn the partial sum into int32."""

    name = ""
    steps = 1 << 30

    def __init__(self, lanes: int, code_max: int) -> None:
        self.lanes = lanes
        self.code_max = code_max
        self.zero_shift = 0  # what `prepare` subtracts from the codes

    def prepare(self, codes: Any) -> Any:
        """What is done once to a code vector (uint32 lanes), however many activations it meets."""
        return codes

    @abstractmethod
    def product(self, codes: Any, x: Any, partial: Any | None) -> Any:
        """partial + codes·x in the unit's partial form. x: uint32 lanes, the same word in each."""

    def form(self) -> tuple[int, str]:
        """Lanes and element type of a partial sum."""
        return self.lanes, "int32"

    def widen(self, partial: Any, factor: int) -> Any:
        """factor · partial sum as int32 lanes. factor is 1, or 128 for a code's high plane."""
        if factor == 1:
            return partial
        return partial << splat_int(factor.bit_length() - 1, self.lanes)


class Avx2(DotUnit):
    """vpmaddubsw into int16; codes up to 63, so that at least two products fit."""

    name = "avx2"

    def __init__(self, lanes: int, code_max: int) -> None:
        super().__init__(lanes, code_max)
        self.steps = 32767 // (2 * code_max * ACTIVATION_MAX)

    def product(self, codes: Any, x: Any, partial: Any | None) -> Any:
        n = self.lanes
        pairs = _call(f"int16x{2 * n}", "llvm.x86.avx2.pmadd.ub.sw", _bytes(codes, n), _bytes(x, n))
        return let(pairs if partial is None else partial + pairs)

    def form(self) -> tuple[int, str]:
        return 2 * self.lanes, "int16"

    def widen(self, partial: Any, factor: int) -> Any:
        n = self.lanes
        factors = T.broadcast(tir.const(factor, "int16"), 2 * n)
        return _call(f"int32x{n}", "llvm.x86.avx2.pmadd.wd", partial, factors)


class Avx2Signed(DotUnit):
    """Eight-bit codes on AVX2: |w| · (x with w's sign), because 255·127·2 does not fit int16."""

    name = "avx2_signed"

    def __init__(self, lanes: int, code_max: int) -> None:
        super().__init__(lanes, code_max)
        self.zero_shift = 128

    def prepare(self, codes: Any) -> Any:
        return let(codes ^ splat_int(0x80808080, self.lanes, "uint32"))

    def product(self, codes: Any, x: Any, partial: Any | None) -> Any:
        n = self.lanes
        w = let(_bytes(codes, n))
        # LLVM's abs (is_int_min_poison = false) is vpabsb: |−128| is 128 as an unsigned byte.
        magnitude = _call(f"int8x{4 * n}", "llvm.abs", w, tir.const(False, "bool"))
        signed = _call(f"int8x{4 * n}", "llvm.x86.avx2.psign.b", _bytes(x, n), w)
        pairs = _call(f"int16x{2 * n}", "llvm.x86.avx2.pmadd.ub.sw", magnitude, signed)
        ones = T.broadcast(tir.const(1, "int16"), 2 * n)
        wide = _call(f"int32x{n}", "llvm.x86.avx2.pmadd.wd", pairs, ones)
        return let(wide if partial is None else partial + wide)


class Vnni(DotUnit):
    """vpdpbusd: four products added into int32."""

    name = "vnni"

    def product(self, codes: Any, x: Any, partial: Any | None) -> Any:
        n = self.lanes
        bits = 32 * n
        start = splat_int(0, n) if partial is None else partial
        return let(
            _call(
                f"int32x{n}",
                f"llvm.x86.avx512.vpdpbusd.{bits}",
                start,
                _bytes(codes, n),
                _bytes(x, n),
            )
        )


class NeonDot(DotUnit):
    """sdot over two four-lane halves; codes above 127 are shifted to signed first."""

    name = "dotprod"

    def __init__(self, lanes: int, code_max: int) -> None:
        super().__init__(lanes, code_max)
        self.zero_shift = 128 if code_max > 127 else 0

    def prepare(self, codes: Any) -> Any:
        if not self.zero_shift:
            return codes
        return let(codes ^ splat_int(0x80808080, self.lanes, "uint32"))

    def product(self, codes: Any, x: Any, partial: Any | None) -> Any:
        n = self.lanes
        start = splat_int(0, n) if partial is None else partial
        halves = []
        for half in range(n // 4):
            lanes = list(range(4 * half, 4 * half + 4))
            byte_lanes = list(range(16 * half, 16 * half + 16))
            halves.append(
                _call(
                    "int32x4",
                    "llvm.aarch64.neon.sdot.v4i32.v16i8",
                    tir.Shuffle([start], lanes),
                    tir.Shuffle([_bytes(codes, n)], byte_lanes),
                    tir.Shuffle([_bytes(x, n)], byte_lanes),
                )
            )
        return let(halves[0] if len(halves) == 1 else tir.Shuffle(halves, list(range(n))))


class Generic(DotUnit):
    """Plain integer arithmetic: right everywhere, slow; the reference for the other units'
    templates.
    """

    name = "generic"

    def product(self, codes: Any, x: Any, partial: Any | None) -> Any:
        n = self.lanes
        total = partial
        signed = let(T.reinterpret(f"int32x{n}", x))
        for byte in range(4):
            w = (codes >> splat_int(8 * byte, n, "uint32")) & splat_int(255, n, "uint32")
            shifted = signed << splat_int(24 - 8 * byte, n)
            value = T.cast(w, f"int32x{n}") * (shifted >> splat_int(24, n))
            total = value if total is None else total + value
        return let(total)


def unit_for(target: Target, lanes: int, code_max: int) -> DotUnit:
    """The best unit of a target for codes up to `code_max`."""
    if target.has("vnni") or target.has("avxvnni"):
        return Vnni(lanes, code_max)
    if target.has("dotprod"):
        return NeonDot(lanes, code_max)
    if target.has("avx2") and lanes == 8:
        return Avx2(lanes, code_max) if code_max <= 63 else Avx2Signed(lanes, code_max)
    return Generic(lanes, code_max)
