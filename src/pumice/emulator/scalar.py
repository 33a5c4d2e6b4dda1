"""Scalar instructions: SOP1, SOP2, SOPC, SOPK, on columns [waves, 1].

Follows the "RDNA3 ISA", sections 16.1 to 16.4. Branches and what ends a block are in `program`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator import float_math as fm
from pumice.emulator.decode import Instruction
from pumice.emulator.operands import Source, source
from pumice.emulator.scalar_table import LOGIC, NONZERO, OWN_SCC, PLAIN
from pumice.emulator.state import EXEC, State

Step = Callable[[], None]


def _less_or_greater(a: Any, b: Any) -> Any:
    """Different numbers: of floats, NaN is neither less nor greater."""
    return np.less(a, b) | np.greater(a, b)


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "lg": _less_or_greater, "gt": np.greater, "ge": np.greater_equal,
    "lt": np.less, "le": np.less_equal, "neq": np.not_equal,
    "nlt": lambda a, b: ~(a < b), "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b), "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "u": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip
_i64 = np.int64
_CMP = re.compile(r"s_cmp(k?)_([a-z]+)_([iuf]\d+)$")
_BITCMP = re.compile(r"s_bitcmp([01])_b(32|64)$")
_SAVEEXEC = re.compile(r"s_(\w+?)_(saveexec|wrexec)_b(32|64)$")


def _sources(state: State, inst: Instruction, kinds: list[str]) -> list[Source]:
    literal = inst.get("literal")
    names = ("ssrc0", "ssrc1")
    return [source(state, k, inst.fields[n], literal) for k, n in zip(kinds, names, strict=False)]


def put_scalar(state: State, register: int, kind: str) -> Callable[[Any], None]:
    """A writer of a scalar register of a kind, whatever array comes in."""
    if kind == "h":  # the upper half becomes 0
        return lambda value: state.put_scalar(
            register, np.asarray(value).astype(np.float16).view(np.uint16).astype(np.uint32)
        )
    if kind.endswith("64"):
        return lambda value: state.put_scalar64(register, np.asarray(value).view(np.uint64))
    if kind in ("i32", "f32"):
        dtype: Any = np.int32 if kind == "i32" else np.float32
        return lambda value: state.put_scalar(
            register, np.asarray(value, dtype=dtype).view(np.uint32)
        )
    return lambda value: state.put_scalar(register, value)


def bind_scalar(state: State, inst: Instruction) -> Step | None:
    """A closure for a scalar instruction, None when it is not one of these."""
    name = inst.name
    special = _SPECIAL.get(name)
    if special is not None:
        return special(state, inst)
    for table, scc in ((NONZERO, "nonzero"), (PLAIN, ""), (OWN_SCC, "own")):
        row = table.get(name)
        if row is not None:
            return _tabled(state, inst, row, scc)
    if _CMP.match(name):
        return _compare(state, inst)
    if _BITCMP.match(name):
        return _bit_compare(state, inst)
    if _SAVEEXEC.match(name):
        return _save_exec(state, inst)
    return None


def _tabled(state: State, inst: Instruction, row: tuple[str, Callable[..., Any]], scc: str) -> Step:
    result, *kinds = row[0].split()
    function = row[1]
    bound = _sources(state, inst, kinds)
    put = put_scalar(state, inst.sdst, result)
    getters = [b.get for b in bound]
    first = getters[0]
    second = getters[1] if len(getters) > 1 else None
    if scc == "own":
        assert second is not None

        def own() -> None:
            value, flag = function(first(), second())
            put(value)
            state.put_scc(flag)

        return own
    if scc == "nonzero":

        def nonzero() -> None:
            value = function(first(), second()) if second is not None else function(first())
            put(value)
            state.put_scc(value != 0)

        return nonzero
    if second is None:
        return lambda: put(function(first()))
    return lambda: put(function(first(), second()))


def _immediate(inst: Instruction, signed: bool) -> int:
    value = inst.simm16
    return value - 0x10000 if signed and value & 0x8000 else value


def _compare(state: State, inst: Instruction) -> Step:
    found = _CMP.match(inst.name)
    assert found
    constant, name, kind = found.groups()
    function = _COMPARE[name]
    if constant:
        a = source(state, kind, inst.sdst)
        value = np.array(_immediate(inst, kind == "i32"), np.int32 if kind == "i32" else np.uint32)
        return lambda: state.put_scc(function(a.get(), value))
    kind = "h" if kind == "f16" else kind
    a, b = _sources(state, inst, [kind, kind])
    return lambda: state.put_scc(function(a.get(), b.get()))


def _bit_compare(state: State, inst: Instruction) -> Step:
    found = _BITCMP.match(inst.name)
    assert found
    wanted, size = int(found.group(1)), int(found.group(2))
    a, b = _sources(state, inst, [f"u{size}", "u32"])
    kind: Any = np.uint32 if size == 32 else np.uint64

    def run() -> None:
        bit = a.get() >> (b.get() & np.uint32(size - 1)).astype(kind) & kind(1)
        state.put_scc(bit == wanted)

    return run


def _save_exec(state: State, inst: Instruction) -> Step:
    """sdst = EXEC; EXEC = op(src, EXEC). `wrexec` writes the new EXEC to sdst instead."""
    found = _SAVEEXEC.match(inst.name)
    assert found
    name, how, size = found.groups()
    function = LOGIC[name][1]
    (a,) = _sources(state, inst, [f"u{size}"])
    wide = size == "64"
    put = state.put_scalar64 if wide else state.put_scalar
    columns = state.column(f"u{size}", EXEC)
    to = inst.sdst

    def run() -> None:
        old = columns.copy()
        new = function(a.get(), old)
        put(EXEC, new)
        put(to, new if how == "wrexec" else old)
        state.put_scc(new != 0)

    return run


def _cselect(state: State, inst: Instruction) -> Step:
    kind = "u64" if inst.name.endswith("64") else "u32"
    a, b = _sources(state, inst, [kind, kind])
    put = put_scalar(state, inst.sdst, kind)
    return lambda: put(np.where(state.scc, a.get(), b.get()))


def _cmov(state: State, inst: Instruction) -> Step:
    kind = "u64" if inst.name.endswith("64") else "u32"
    if inst.encoding.startswith("SOPK"):
        value: Any = np.array(_immediate(inst, True), np.int32).view(np.uint32)
        a = Source(value)
    else:
        (a,) = _sources(state, inst, [kind])
    old = source(state, kind, inst.sdst)
    put = put_scalar(state, inst.sdst, kind)
    return lambda: put(np.where(state.scc, a.get(), old.get()))


def _carry(state: State, inst: Instruction) -> Step:
    a, b = _sources(state, inst, ["u32", "u32"])
    subtract = inst.name == "s_subb_u32"
    to = inst.sdst

    def run() -> None:
        x, y, c = a.get().astype(_i64), b.get().astype(_i64), state.scc.astype(_i64)
        total = x - y - c if subtract else x + y + c
        state.put_scalar(to, total.astype(np.uint32))
        state.put_scc(total < 0 if subtract else total > 0xFFFFFFFF)

    return run


def _movk(state: State, inst: Instruction) -> Step:
    value = np.array(_immediate(inst, True), np.int32).view(np.uint32)
    return lambda: state.put_scalar(inst.sdst, value)


def _addk(state: State, inst: Instruction) -> Step:
    value = _immediate(inst, True)
    a = source(state, "i32", inst.sdst)

    def run() -> None:
        total = a.get().astype(_i64) + value
        state.put_scalar(inst.sdst, total.astype(np.uint32))
        state.put_scc((total > 2**31 - 1) | (total < -(2**31)))

    return run


def _mulk(state: State, inst: Instruction) -> Step:
    value = _immediate(inst, True)
    a = source(state, "i32", inst.sdst)
    return lambda: state.put_scalar(inst.sdst, (a.get().astype(_i64) * value).astype(np.uint32))


def _bitset(state: State, inst: Instruction) -> Step:
    size = int(inst.name[-2:])
    kind: Any = np.uint32 if size == 32 else np.uint64
    (a,) = _sources(state, inst, ["u32"])
    old = source(state, f"u{size}", inst.sdst)
    put = put_scalar(state, inst.sdst, f"u{size}")
    setting = "bitset1" in inst.name

    def run() -> None:
        bit = kind(1) << (a.get() & np.uint32(size - 1)).astype(kind)
        put(old.get() | bit if setting else old.get() & ~bit)

    return run


def _scalar_fma16(state: State, inst: Instruction) -> Step:
    a, b = _sources(state, inst, ["h", "h"])
    old = source(state, "h", inst.sdst)
    put = put_scalar(state, inst.sdst, "h")
    return lambda: put(fm.fma16(a.get(), b.get(), old.get()))


def _scalar_fma(state: State, inst: Instruction) -> Step:
    a, b = _sources(state, inst, ["f32", "f32"])
    literal = source(state, "f32", 255, inst.get("literal"))
    old = source(state, "f32", inst.sdst)
    put = put_scalar(state, inst.sdst, "f32")
    if inst.name == "s_fmac_f32":
        return lambda: put(fm.fma32(a.get(), b.get(), old.get()))
    if inst.name == "s_fmamk_f32":
        return lambda: put(fm.fma32(a.get(), literal.get(), b.get()))
    return lambda: put(fm.fma32(a.get(), b.get(), literal.get()))


_SPECIAL: dict[str, Callable[[State, Instruction], Step]] = {
    "s_cselect_b32": _cselect,
    "s_cselect_b64": _cselect,
    "s_cmov_b32": _cmov,
    "s_cmov_b64": _cmov,
    "s_cmovk_i32": _cmov,
    "s_addc_u32": _carry,
    "s_subb_u32": _carry,
    "s_movk_i32": _movk,
    "s_addk_i32": _addk,
    "s_mulk_i32": _mulk,
    "s_bitset0_b32": _bitset,
    "s_bitset1_b32": _bitset,
    "s_bitset0_b64": _bitset,
    "s_bitset1_b64": _bitset,
    "s_fmac_f16": _scalar_fma16,
    "s_fmac_f32": _scalar_fma,
    "s_fmamk_f32": _scalar_fma,
    "s_fmaak_f32": _scalar_fma,
}
