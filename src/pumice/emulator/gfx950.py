"""Vector instructions that gfx950 brought: V_CVT_SCALEF32_* between FP8, BF8, FP4 and wider
formats, and V_BITOP3_B16.

The scale is a float32 of which only the exponent counts, as an e8m0 code: a conversion to a small
format divides by 2^(exponent - 127), one from it multiplies. Operands as in the pseudo-code of the
CDNA4 ISA document; under MODE.FP16_OVFL what overflows saturates.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator import numbers
from pumice.emulator.decode import Instruction
from pumice.emulator.int_math import bitop3
from pumice.emulator.lanes import Step
from pumice.emulator.numbers import FloatFormat, Overflow
from pumice.emulator.operands import source, vector_put
from pumice.emulator.state import State
from pumice.emulator.vector import operand_codes, sources

_SMALL = {"fp8": numbers.E4M3, "bf8": numbers.E5M2, "fp4": numbers.E2M1}
_WIDE = {"f32": numbers.F32, "f16": numbers.F16, "bf16": numbers.BF16}
_NAME = re.compile(
    r"v_cvt_scalef32_(?P<pair>pk_)?(?P<to>fp8|bf8|fp4|f32|f16|bf16)_(?P<given>fp8|bf8|fp4|f32|f16|bf16)"
)


def bind_gfx950(state: State, inst: Instruction) -> Step | None:
    """A closure for one of these instructions; None for anything else (also for conversions of FP6
    and with stochastic rounding).
    """
    if inst.name == "v_bitop3_b16":
        return _bitop3_b16(state, inst)
    match = _NAME.fullmatch(inst.name)
    if match is None:
        return None
    to, given = match["to"], match["given"]
    if to in _SMALL and given in _WIDE:
        return _to_small(state, inst, _SMALL[to], given)
    if to in _WIDE and given in _SMALL:
        return _from_small(state, inst, to, _SMALL[given], 2 if match["pair"] else 1)
    return None


def _bitop3_b16(state: State, inst: Instruction) -> Step:
    """Any function of three bits on halves of registers (OPSEL)."""
    table = inst.get("omod") << 6 | inst.get("abs") << 3 | inst.get("neg")
    literal, select = inst.get("literal"), inst.get("opsel")
    a, b, c = (
        source(state, "u16", code, literal, high=select >> i & 1)
        for i, code in enumerate(operand_codes(inst, 3))
    )
    high = select >> 3 & 1
    put = vector_put(state, "u16", inst.vdst - 256, high=high, keep=bool(high))

    def run() -> None:
        x, y, z = (np.asarray(operand.get()).astype(np.uint32) for operand in (a, b, c))
        put(bitop3(x, y, z, table).astype(np.uint16))

    return run


def _factors(scale: Any) -> Any:
    """2^(exponent - 127) as float64, of a scale's bits as uint32."""
    return numbers.table(numbers.E8M0, dtype="float64").take(scale >> np.uint32(23) & 255)


def _to_small(state: State, inst: Instruction, target: FloatFormat, given: str) -> Step:
    """Two values to two codes: 16 bits of FP8 (OPSEL[3]: which half) or 8 of FP4 (OPSEL[3:2])."""
    count = 3 if given == "f32" else 2
    bound = sources(state, inst, ("u32",) * count)
    select, index = inst.get("opsel"), inst.vdst - 256
    wide = _WIDE[given]

    def values() -> tuple[Any, Any]:
        first = bound[0].get()
        if given == "f32":
            return first, bound[1].get()
        return first & np.uint32(0xFFFF), first >> np.uint32(16)

    def codes() -> Any:
        factor = _factors(bound[-1].get())
        overflow = Overflow.SATURATE if state.fp16_overflow else Overflow.INFINITY
        low, high = (
            numbers.encode(
                numbers.decode(np.asarray(v), wide).astype(np.float64) / factor,
                target,
                overflow=overflow,
            ).astype(np.uint32)
            for v in values()
        )
        return low | high << np.uint32(target.bits)

    if target.bits == 8:
        put16 = vector_put(state, "u16", index, high=select >> 3 & 1)
        return lambda: put16(codes().astype(np.uint16))
    shift = np.uint32(8 * (select >> 2 & 3))
    row, put = state.row("u32", index), vector_put(state, "u32", index)
    return lambda: put(row & ~(np.uint32(0xFF) << shift) | codes() << shift)


def _from_small(state: State, inst: Instruction, to: str, given: FloatFormat, count: int) -> Step:
    """One code or two to a float32, a pair of registers, or halves of one."""
    bits_, scale = sources(state, inst, ("u32", "u32"))
    select, index = inst.get("opsel"), inst.vdst - 256
    # Pairs of FP8: OPSEL[0] says which half; single ones and pairs of FP4: OPSEL[1:0], which byte.
    start = 16 * (select & 1) if count == 2 and given.bits == 8 else 8 * (select & 3)
    table = numbers.table(given, dtype="float64")
    mask = np.uint32((1 << given.bits) - 1)

    def value(which: int) -> Any:
        codes = bits_.get() >> np.uint32(start + which * given.bits) & mask
        with np.errstate(over="ignore"):
            return table.take(codes) * _factors(scale.get())

    if to == "f32":
        puts = [vector_put(state, "f32", index + i) for i in range(count)]

        def write() -> None:
            for put, result in zip(puts, [value(i) for i in range(count)], strict=True):
                put(numbers.encode(result, numbers.F32).view(np.float32))

        return write
    first = select >> 3 & 1 if count == 1 else 0
    halves = [vector_put(state, "u16", index, high=first + i) for i in range(count)]
    encode: Callable[[Any], Any] = lambda v: numbers.encode(v, _WIDE[to])  # noqa: E731

    def write_halves() -> None:
        for put, result in zip(halves, [value(i) for i in range(count)], strict=True):
            put(encode(result))

    return write_halves
