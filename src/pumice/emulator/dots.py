"""Dot products of the vector unit: packed float16, bfloat16, FP8, and integers of 4 to 16 bits.

Follows the "RDNA3 ISA", section 16.10, "RDNA4 ISA", section 16.10, and "CDNA3 ISA", section 12.10.
Sums are made exactly and rounded once; hardware may round between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator import float_math as fm
from pumice.emulator import numbers
from pumice.emulator.decode import Instruction
from pumice.emulator.fp8 import fp8_format
from pumice.emulator.operands import Source, source, vector_put
from pumice.emulator.state import State
from pumice.emulator.vector import clamp01, operand_codes, sources
from pumice.errors import UnimplementedInstructionError

Step = Callable[[], None]
_U32 = np.uint32


def _half(a: Any, high: int) -> Any:
    """A float16 half of packed words as float32."""
    part = (a >> _U32(16) if high else a & _U32(0xFFFF)).astype(np.uint16)
    return part.view(np.float16).astype(np.float32)


def _brain(a: Any, high: int) -> Any:
    return (a & _U32(0xFFFF0000) if high else a << _U32(16)).view(np.float32)


def _dot2_f16(a: Any, b: Any, c: Any) -> Any:
    total = _half(a, 0).astype(np.float64) * _half(b, 0)
    return total + _half(a, 1).astype(np.float64) * _half(b, 1) + c


def _dot2_bf16(a: Any, b: Any, c: Any) -> Any:
    total = _brain(a, 0).astype(np.float64) * _brain(b, 0)
    return total + _brain(a, 1).astype(np.float64) * _brain(b, 1) + c


DOT2: dict[str, Callable[[Any, Any, Any], Any]] = {"f16": _dot2_f16, "bf16": _dot2_bf16}


def _integer_parts(a: Any, bits: int, signed: bool) -> list[Any]:
    """The 2, 4 or 8 fields of a word as int64."""
    up = 64 - bits
    found = []
    for i in range(32 // bits):
        part = (a >> _U32(bits * i)).astype(np.int64)
        found.append(part << up >> up if signed else part & ((1 << bits) - 1))
    return found


def _integer_dot(bits: int, signed_a: bool, signed_b: bool) -> Callable[[Any, Any], Any]:
    def run(a: Any, b: Any) -> Any:
        pairs = zip(
            _integer_parts(a, bits, signed_a), _integer_parts(b, bits, signed_b), strict=True
        )
        return sum(x * y for x, y in pairs)

    return run


def bind_dot(state: State, inst: Instruction) -> Step:
    name = inst.name
    literal = inst.get("literal")
    codes = operand_codes(inst, 3)
    accumulates = "acc" in name or "c_" in name
    third = inst.vdst if accumulates else codes[2]
    a, b = source(state, "u32", codes[0], literal), source(state, "u32", codes[1], literal)
    if "DPP" in inst.encoding:
        a, b = sources(state, inst, ("u32", "u32"))
    index = inst.vdst - 256
    neg, neg_hi = inst.get("neg"), inst.get("neg_hi")
    get_a, get_b = a.get, b.get
    if name in ("v_dot2_f16_f16", "v_dot2_bf16_bf16"):
        return _dot2_small(state, inst, get_a, get_b)
    if "_f32_" in name and name.startswith("v_dot2"):
        if neg or neg_hi:
            raise UnimplementedInstructionError("neg of a dot product")
        c = source(state, "f32", third, literal)
        function = DOT2["bf16" if name.endswith("bf16") else "f16"]
        put = vector_put(state, "f32", index)
        clamp = inst.get("clmp")

        def dot2() -> None:
            value = function(get_a(), get_b(), c.get())
            put(clamp01(value) if clamp else value)

        return dot2
    if "_f32_" in name:
        return _dot4_fp8(state, inst, get_a, get_b, source(state, "f32", third, literal))
    bits = {"v_dot2": 16, "v_dot4": 8, "v_dot8": 4}[name[:6]]
    if "_iu" in name:
        signed = bool(neg & 1), bool(neg & 2)
        wide_sign = True
    else:
        wide_sign = "_i32_" in name
        signed = wide_sign, wide_sign
    function2 = _integer_dot(bits, *signed)
    addend = source(state, "i32" if wide_sign else "u32", third, literal)
    put = vector_put(state, "u32", index)
    saturate = inst.get("clmp")
    low, high = (-(2**31), 2**31 - 1) if wide_sign else (0, 2**32 - 1)

    def run() -> None:
        total = function2(get_a(), get_b()) + addend.get().astype(np.int64)
        if saturate:
            total = np.clip(total, low, high)
        put(total.astype(np.uint32))

    return run


def _dot2_small(
    state: State, inst: Instruction, get_a: Callable[[], Any], get_b: Callable[[], Any]
) -> Step:
    """v_dot2_f16_f16 and v_dot2_bf16_bf16: the sum is of the sources' type."""
    brain = "bf16" in inst.name
    select = inst.get("opsel")
    index = inst.vdst - 256
    high = select >> 3 & 1
    if brain:
        c16 = source(state, "u16", inst.src2, inst.get("literal"), high=select >> 2 & 1)
        put = vector_put(state, "u16", index, high=high)

        def run_brain() -> None:
            c = (c16.get().astype(_U32) << _U32(16)).view(np.float32)
            put(fm.brain_bits(_dot2_bf16(get_a(), get_b(), c)).astype(np.uint16))

        return run_brain
    c_half = source(state, "h", inst.src2, inst.get("literal"), high=select >> 2 & 1)
    put_half = vector_put(state, "h", index, high=high)
    return lambda: put_half(_dot2_f16(get_a(), get_b(), c_half.get()))


def _dot4_fp8(
    state: State,
    inst: Instruction,
    get_a: Callable[[], Any],
    get_b: Callable[[], Any],
    c: Source,
) -> Step:
    first, second = inst.name.split("_")[-2:]
    table_a = numbers.table(fp8_format(state, first), dtype="float64")
    table_b = numbers.table(fp8_format(state, second), dtype="float64")
    put = vector_put(state, "f32", inst.vdst - 256)

    def run() -> None:
        a, b = get_a(), get_b()
        total: Any = 0.0
        for i in range(4):
            shift, byte = _U32(8 * i), _U32(255)
            total = total + table_a[a >> shift & byte] * table_b[b >> shift & byte]
        put(total + c.get())

    return run
