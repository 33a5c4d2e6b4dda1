"""Packed and mixed-precision operations (VOP3P), and dot products.

Follows the "RDNA3 ISA", sections 7.5 and 16.10, and the "CDNA3 ISA", section 12.10. op_sel picks
the half of each source that makes the low result, op_sel_hi the one that makes the high result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator import float_math as fm
from pumice.emulator import numbers
from pumice.emulator.decode import Instruction
from pumice.emulator.operands import _FLOATS, Source, constant, source, vector_put
from pumice.emulator.sanitizer import Watch
from pumice.emulator.state import State
from pumice.emulator.vector import clamp01, operand_codes, sources
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
        return _dot(state, inst)
    if name in _FP8:
        return _FP8[name](state, inst)
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
            pick = select[side] >> i & 1 if register else 0
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


def _dot(state: State, inst: Instruction) -> Step:
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


def _fp8_format(state: State, name: str) -> numbers.FloatFormat:
    """OCP formats, or on gfx942 the FNUZ ones."""
    key = "e4m3" if name == "fp8" else "e5m2"
    return numbers.FORMATS[key + ("fnuz" if state.arch == "gfx942" else "")]


def _dot4_fp8(
    state: State,
    inst: Instruction,
    get_a: Callable[[], Any],
    get_b: Callable[[], Any],
    c: Source,
) -> Step:
    first, second = inst.name.split("_")[-2:]
    table_a = numbers.table(_fp8_format(state, first), dtype="float64")
    table_b = numbers.table(_fp8_format(state, second), dtype="float64")
    put = vector_put(state, "f32", inst.vdst - 256)

    def run() -> None:
        a, b = get_a(), get_b()
        total: Any = 0.0
        for i in range(4):
            shift, byte = _U32(8 * i), _U32(255)
            total = total + table_a[a >> shift & byte] * table_b[b >> shift & byte]
        put(total + c.get())

    return run


def _from_fp8(state: State, inst: Instruction) -> Step:
    """v_cvt_f32_fp8 and bf8: one byte; v_cvt_pk_f32_fp8: two bytes to a register pair."""
    which = inst.name.rsplit("_", 1)[1]
    table = numbers.table(_fp8_format(state, which), dtype="float32")
    (bound,) = sources(state, inst, ("u32",))
    get = bound.get
    index = inst.vdst - 256
    select = inst.get("opsel")
    byte = _U32(255)
    if "_pk_" in inst.name:
        shift = _U32(16 * (select & 1))
        puts = [vector_put(state, "f32", index + i) for i in range(2)]

        def pair() -> None:
            bits = get() >> shift
            puts[0](table[bits & byte])
            puts[1](table[bits >> _U32(8) & byte])

        return pair
    # RDNA4's op_sel bits are swapped: bit 1 says which byte of the half, bit 0 which half.
    place = (select & 1) << 1 | select >> 1 & 1
    down = _U32(8 * place)
    put = vector_put(state, "f32", index)
    return lambda: put(table[get() >> down & byte])


def _to_fp8(state: State, inst: Instruction) -> Step:
    """v_cvt_pk_fp8_f32: two float32 to two bytes in one half of the destination."""
    target = _fp8_format(state, inst.name.split("_")[3])
    a, b = sources(state, inst, ("f32", "f32"))
    put = vector_put(state, "u16", inst.vdst - 256, high=inst.get("opsel") >> 3 & 1)

    def run() -> None:
        low = numbers.encode(np.ascontiguousarray(a.get()), target).astype(np.uint16)
        high = numbers.encode(np.ascontiguousarray(b.get()), target).astype(np.uint16)
        put(low | high << np.uint16(8))

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


_FP8: dict[str, Callable[[State, Instruction], Step]] = {
    "v_cvt_f32_fp8": _from_fp8,
    "v_cvt_f32_bf8": _from_fp8,
    "v_cvt_pk_f32_fp8": _from_fp8,
    "v_cvt_pk_f32_bf8": _from_fp8,
    "v_cvt_pk_fp8_f32": _to_fp8,
    "v_cvt_pk_bf8_f32": _to_fp8,
}
