"""Packed and mixed-precision operations (VOP3P).

Follows the "RDNA3 ISA", sections 7.5 and 16.10, and the "CDNA3 ISA", section 12.10. op_sel picks
the half of each source that makes the low result, op_sel_hi the one that makes the high result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator import float_math as fm
from pumice.emulator.decode import Instruction
from pumice.emulator.dots import bind_dot
from pumice.emulator.fp8 import FP8
from pumice.emulator.operands import _FLOATS, Source, constant, source, vector_put
from pumice.emulator.sanitizer import Watch
from pumice.emulator.state import State
from pumice.emulator.vector import clamp01, operand_codes
from pumice.errors import UnimplementedInstructionError

Step = Callable[[], None]
_U32 = np.uint32
_15 = np.uint16(15)


def _w(a: Any) -> Any:
    return a.astype(np.int64)


# name → (kind of halves, function, bounds of a clamped integer result)
_PACKED: dict[str, tuple[str, Callable[..., Any], tuple[int, int] | None]] = {
    "v_pk_add_f16": ("h", np.add, None),
    "v_pk_mul_f16": ("h", np.multiply, None),
    "v_pk_fma_f16": ("h", fm.fma16, None),
    "v_pk_fmac_f16": ("h", fm.fma16, None),
    "v_pk_min_f16": ("h", fm.minimum, None),
    "v_pk_max_f16": ("h", fm.maximum, None),
    "v_pk_minimum_f16": ("h", fm.minimum_ieee, None),
    "v_pk_maximum_f16": ("h", fm.maximum_ieee, None),
    "v_pk_minimum3_f16": ("h", lambda a, b, c: fm.minimum_ieee(fm.minimum_ieee(a, b), c), None),
    "v_pk_maximum3_f16": ("h", lambda a, b, c: fm.maximum_ieee(fm.maximum_ieee(a, b), c), None),
    "v_pk_add_u16": ("u16", lambda a, b: _w(a) + b, (0, 65535)),
    "v_pk_sub_u16": ("u16", lambda a, b: _w(a) - b, (0, 65535)),
    "v_pk_add_i16": ("i16", lambda a, b: _w(a) + b, (-32768, 32767)),
    "v_pk_sub_i16": ("i16", lambda a, b: _w(a) - b, (-32768, 32767)),
    "v_pk_mul_lo_u16": ("u16", lambda a, b: _w(a) * b, None),
    "v_pk_mad_u16": ("u16", lambda a, b, c: _w(a) * b + c, (0, 65535)),
    "v_pk_mad_i16": ("i16", lambda a, b, c: _w(a) * b + c, (-32768, 32767)),
    "v_pk_min_u16": ("u16", np.minimum, None),
    "v_pk_max_u16": ("u16", np.maximum, None),
    "v_pk_min_i16": ("i16", np.minimum, None),
    "v_pk_max_i16": ("i16", np.maximum, None),
    "v_pk_lshlrev_b16": ("u16", lambda a, b: b << (a & _15), None),
    "v_pk_lshrrev_b16": ("u16", lambda a, b: b >> (a & _15), None),
    "v_pk_ashrrev_i16": ("i16", lambda a, b: b >> (a & np.int16(15)), None),
}
_PACKED_F32: dict[str, Callable[..., Any]] = {
    "v_pk_add_f32": np.add,
    "v_pk_mul_f32": np.multiply,
    "v_pk_fma_f32": fm.fma32,
}


def half_source(state: State, kind: str, code: int, literal: int, high: int) -> Source:
    """A 16-bit half of a packed source. A constant has 0 (or its sign) in the upper half."""
    if constant("u32", code, literal) is None:
        return source(state, kind, code, high=high)
    if code in _FLOATS:
        bits = 0 if high else int(np.array(_FLOATS[code], np.float16).view(np.uint16))
    else:
        word = constant("u32", code, literal)
        assert word is not None
        bits = int(word) >> 16 * high & 0xFFFF
    return source(state, kind, 255, bits)


def bind_packed(state: State, inst: Instruction, watch: Watch | None) -> Step | None:
    """A closure for a VOP3P instruction (or a dot product elsewhere); None when it is none."""
    name = inst.name
    if "DPP" in inst.encoding and not name.startswith("v_dot"):
        raise UnimplementedInstructionError("DPP of this operation")
    if name in _PACKED:
        return _packed(state, inst, watch)
    if name in _PACKED_F32 or name == "v_pk_mov_b32":
        return _packed_f32(state, inst, watch)
    if name.startswith("v_fma_mix"):
        return _mix(state, inst, watch)
    if name.startswith(("v_dot2", "v_dot4", "v_dot8")):
        return bind_dot(state, inst)
    if name in FP8:
        return FP8[name](state, inst)
    if name == "v_bitop3_b32":
        return _bitop3(state, inst)
    if name.startswith("v_accvgpr_"):
        return _accumulator(state, inst)
    return None


def _packed(state: State, inst: Instruction, watch: Watch | None) -> Step:
    kind, function, bounds = _PACKED[inst.name]
    literal = inst.get("literal")
    codes = operand_codes(inst, 3)
    accumulate = inst.name == "v_pk_fmac_f16"
    count = 3 if "fma_" in inst.name or "mad_" in inst.name or "3_" in inst.name else 2
    codes = codes[:count]
    if accumulate:
        codes = [inst.src0, inst.get("vsrc1", inst.get("src1")), inst.vdst]
    vop3p = inst.encoding.startswith("VOP3P")
    select = inst.get("opsel") if vop3p else 0
    select_high = inst.get("opsel_hi") | inst.get("opsel_hi2") << 2 if vop3p else 7
    negs = (inst.get("neg"), inst.get("neg_hi"))
    index = inst.vdst - 256
    everywhere = (1 << len(codes)) - 1
    if (
        kind == "h"
        and min(codes) >= 256
        and not (inst.get("clmp") or negs[0] or negs[1])
        and (select & everywhere == 0 and select_high & everywhere == everywhere)
    ):
        return _both_halves(state, inst, function, [code - 256 for code in codes], watch)
    halves: list[list[Callable[[], Any]]] = []
    for side in (0, 1):
        got = []
        for i, code in enumerate(codes):
            high = (select_high if side else select) >> i & 1
            got.append(_negated(half_source(state, kind, code, literal, high), negs[side] >> i & 1))
        halves.append(got)
    puts = [vector_put(state, kind, index, high=side) for side in (0, 1)]
    clamp = inst.get("clmp")
    low, high_ = halves

    def finish(value: Any) -> Any:
        if clamp:
            return clamp01(value) if kind == "h" else np.clip(value, *bounds)  # type: ignore[misc]
        return value

    if clamp and kind != "h" and bounds is None:
        raise UnimplementedInstructionError("its clamp bit")

    def run() -> None:
        values_low, values_high = [g() for g in low], [g() for g in high_]
        first, second = finish(function(*values_low)), finish(function(*values_high))
        if watch is not None and watch.invalid:
            watch.nan(inst, first, values_low)
            watch.invalid = True
            watch.nan(inst, second, values_high)
        if kind != "h":
            first, second = _narrow(first, kind), _narrow(second, kind)
        puts[0](first)
        puts[1](second)

    return run


def _both_halves(
    state: State,
    inst: Instruction,
    function: Callable[..., Any],
    registers: list[int],
    watch: Watch | None,
) -> Step:
    """Low halves with low ones, high with high, as most are: one operation on twice the lanes."""
    pairs = [state.v[register].view(np.float16) for register in registers]
    put = vector_put(state, "u32", inst.vdst - 256)

    def run() -> None:
        values = [pair.astype(np.float32) for pair in pairs]
        result = function(*values)
        if watch is not None and watch.invalid:
            for side in (0, 1):
                watch.invalid = True
                watch.nan(inst, result[:, side::2], [value[:, side::2] for value in values])
        put(result.astype(np.float16).view(np.uint32))

    return run


def _narrow(value: Any, kind: str) -> Any:
    return np.array(value).astype(np.uint16 if kind == "u16" else np.int16)


def _negated(bound: Source, neg: int) -> Callable[[], Any]:
    get = bound.get
    return (lambda: np.negative(get())) if neg else get


def _packed_f32(state: State, inst: Instruction, watch: Watch | None) -> Step:
    """Two float32 of register pairs at once (CDNA2 and later)."""
    count = 3 if "fma" in inst.name else 2
    move = inst.name == "v_pk_mov_b32"
    kind = "u32" if move else "f32"
    codes = operand_codes(inst, count)
    literal = inst.get("literal")
    select = (inst.opsel, inst.opsel_hi | inst.opsel_hi2 << 2)
    negs = (inst.neg, inst.neg_hi)
    sides = []
    for side in (0, 1):
        got = []
        for i, code in enumerate(codes):
            register = constant("u32", code, literal) is None
            half = select[0] if move else select[side]  # op_sel alone places a move
            pick = half >> i & 1 if register else 0
            got.append(_negated(source(state, kind, code + pick, literal), negs[side] >> i & 1))
        sides.append(got)
    index = inst.vdst - 256
    puts = [vector_put(state, kind, index + side) for side in (0, 1)]
    if move:  # the low result comes from the first source, the high one from the second
        low, high = sides[0][0], sides[1][1]

        def moved() -> None:
            first, second = low(), np.array(high())
            first = np.array(first)
            puts[0](first)
            puts[1](second)

        return moved
    function = _PACKED_F32[inst.name]
    if inst.get("clmp"):
        inner = function
        function = lambda *a: clamp01(inner(*a))  # noqa: E731

    def run() -> None:
        values = [[g() for g in side] for side in sides]
        results = [function(*v) for v in values]
        if watch is not None and watch.invalid:
            watch.nan(inst, results[0], values[0])
            watch.invalid = True
            watch.nan(inst, results[1], values[1])
        puts[0](results[0])
        puts[1](results[1])

    return run


def _mix(state: State, inst: Instruction, watch: Watch | None) -> Step:
    """v_fma_mix: each source is float32, or a half of a register as float16."""
    high_bits = inst.opsel_hi | inst.opsel_hi2 << 2
    literal = inst.get("literal")
    getters = []
    for i, code in enumerate(operand_codes(inst, 3)):
        mods = {"neg": inst.neg >> i & 1, "absolute": inst.neg_hi >> i & 1}
        if high_bits >> i & 1:
            high = inst.opsel >> i & 1
            getters.append(source(state, "h", code, literal, high=high, **mods).get)
        else:
            getters.append(source(state, "f32", code, literal, **mods).get)
    clamp = inst.get("clmp")
    index = inst.vdst - 256
    if inst.name == "v_fma_mix_f32":
        put = vector_put(state, "f32", index)
    else:
        put = vector_put(state, "h", index, high=int("mixhi" in inst.name))

    def run() -> None:
        values = [g() for g in getters]
        result = fm.fma32(*values)
        if clamp:
            result = clamp01(result)
        if watch is not None and watch.invalid:
            watch.nan(inst, result, values)
        put(result)

    return run


def _bitop3(state: State, inst: Instruction) -> Step:
    from pumice.emulator.int_math import bitop3

    table = inst.get("omod") << 6 | inst.get("abs") << 3 | inst.get("neg")
    literal = inst.get("literal")
    a, b, c = (source(state, "u32", code, literal) for code in operand_codes(inst, 3))
    put = vector_put(state, "u32", inst.vdst - 256)
    return lambda: put(bitop3(a.get(), b.get(), c.get(), table))


def _accumulator(state: State, inst: Instruction) -> Step:
    """v_accvgpr_read, write and mov between the two halves of CDNA's register file."""
    from pumice.emulator.state import ACC

    read, write = "read" in inst.name, "write" in inst.name
    code = inst.src0 + (0 if write else ACC)
    to = inst.vdst - 256 + (0 if read else ACC)
    bound = source(state, "u32", code, inst.get("literal"))
    put = vector_put(state, "u32", to)
    return lambda: put(bound.get())
