"""Scalar instructions: SOP1, SOP2, SOPC, SOPK, on columns [waves, 1].

Follows the "RDNA3 ISA", sections 16.1 to 16.4. Branches and what ends a block are in `program`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator import float_math as fm
from pumice.emulator import int_math as im
from pumice.emulator.decode import Instruction
from pumice.emulator.operands import Source, source
from pumice.emulator.state import EXEC, State

Step = Callable[[], None]
_i64, _u64 = np.int64, np.uint64


def _wide(a: Any) -> Any:
    return a.astype(np.int64)


def _overflow(a: Any, b: Any, exact: Any) -> Any:
    return (exact > 2**31 - 1) | (exact < -(2**31))


# name → (kinds "dst src src", function); SCC = result is not 0.
_LOGIC: dict[str, tuple[str, Callable[..., Any]]] = {
    "and": ("u u u", np.bitwise_and),
    "or": ("u u u", np.bitwise_or),
    "xor": ("u u u", np.bitwise_xor),
    "and_not1": ("u u u", lambda a, b: a & ~b),
    "or_not1": ("u u u", lambda a, b: a | ~b),
    "and_not0": ("u u u", lambda a, b: ~a & b),
    "or_not0": ("u u u", lambda a, b: ~a | b),
    "nand": ("u u u", lambda a, b: ~(a & b)),
    "nor": ("u u u", lambda a, b: ~(a | b)),
    "xnor": ("u u u", lambda a, b: ~(a ^ b)),
}


def _bfe64(a: Any, b: Any, signed: bool) -> Any:
    offset, width = b & np.uint32(63), b >> np.uint32(16) & np.uint32(127)
    width = np.minimum(width, 64).astype(np.int64)
    left = np.maximum(64 - width - offset.astype(np.int64), 0)
    if signed:
        moved = np.left_shift(a.view(np.int64), left)
        return np.where(width == 0, 0, moved >> np.minimum(left + offset, 63))
    ones = np.where(
        width >= 64, _u64(2**64 - 1), (_u64(1) << np.minimum(width, 63).astype(_u64)) - _u64(1)
    )
    return a >> offset.astype(_u64) & ones


def _split(b: Any) -> tuple[Any, Any]:
    return b & np.uint32(31), b >> np.uint32(16) & np.uint32(127)


def _bfe32(a: Any, b: Any) -> Any:
    offset, width = _split(b)
    whole = a >> offset
    ones = (_u64(1) << np.minimum(width, 32).astype(_u64)) - _u64(1)
    return (whole & ones).astype(np.uint32)


def _bfe32s(a: Any, b: Any) -> Any:
    offset, width = _split(b)
    up = 64 - np.minimum(width, 32).astype(np.int64)
    value = a.view(np.int32).astype(np.int64) >> offset
    return np.where(width == 0, 0, value << np.minimum(up, 63) >> np.minimum(up, 63)).astype(
        np.int32
    )


def _wqm(a: Any) -> Any:
    bits = a.dtype.itemsize * 8
    four = a.dtype.type(15)
    result = a - a
    for i in range(0, bits, 4):
        result = result | np.where(a >> a.dtype.type(i) & four != 0, four << a.dtype.type(i), 0)
    return result


# Operations whose SCC is (result != 0).
_NONZERO: dict[str, tuple[str, Callable[..., Any]]] = {
    **{
        f"s_{name}_b{size}": (signature.replace("u", f"u{size}"), function)
        for name, (signature, function) in _LOGIC.items()
        for size in (32, 64)
    },
    "s_lshl_b32": ("u32 u32 u32", im.shl),
    "s_lshr_b32": ("u32 u32 u32", im.shr),
    "s_ashr_i32": ("i32 u32 u32", im.sar),
    "s_lshl_b64": ("u64 u64 u32", im.shl64),
    "s_lshr_b64": ("u64 u64 u32", im.shr64),
    "s_ashr_i64": ("i64 u64 u32", im.sar64),
    "s_bfe_u32": ("u32 u32 u32", _bfe32),
    "s_bfe_i32": ("i32 u32 u32", _bfe32s),
    "s_bfe_u64": ("u64 u64 u32", lambda a, b: _bfe64(a, b, False)),
    "s_bfe_i64": ("i64 u64 u32", lambda a, b: _bfe64(a, b, True)),
    "s_absdiff_i32": ("u32 i32 i32", lambda a, b: np.abs(_wide(a) - b).astype(np.uint32)),
    "s_not_b32": ("u32 u32", np.invert),
    "s_not_b64": ("u64 u64", np.invert),
    "s_bcnt0_i32_b32": ("u32 u32", lambda a: im.popcount(~a)),
    "s_bcnt1_i32_b32": ("u32 u32", im.popcount),
    "s_bcnt0_i32_b64": ("u32 u64", lambda a: im.popcount(~a)),
    "s_bcnt1_i32_b64": ("u32 u64", im.popcount),
    "s_wqm_b32": ("u32 u32", _wqm),
    "s_wqm_b64": ("u64 u64", _wqm),
    "s_abs_i32": ("i32 i32", np.abs),
}

# Operations that leave SCC alone.
_PLAIN: dict[str, tuple[str, Callable[..., Any]]] = {
    "s_mov_b32": ("u32 u32", lambda a: a),
    "s_mov_b64": ("u64 u64", lambda a: a),
    "s_mul_i32": ("u32 u32 u32", np.multiply),
    "s_mul_hi_u32": ("u32 u32 u32", im.mul_hi_u32),
    "s_mul_hi_i32": ("i32 i32 i32", im.mul_hi_i32),
    "s_add_nc_u64": ("u64 u64 u64", np.add),
    "s_sub_nc_u64": ("u64 u64 u64", np.subtract),
    "s_mul_u64": ("u64 u64 u64", np.multiply),
    "s_bfm_b32": ("u32 u32 u32", im.bfm),
    "s_bfm_b64": ("u64 u32 u32", lambda a, b: im.shl64(im.shl64(_u64(1), a) - _u64(1), b)),
    "s_brev_b32": ("u32 u32", im.reverse),
    "s_brev_b64": (
        "u64 u64",
        lambda a: im.reverse(a.astype(np.uint32)).astype(_u64) << _u64(32)
        | im.reverse((a >> _u64(32)).astype(np.uint32)),
    ),
    "s_clz_i32_u32": ("i32 u32", im.leading_zeros),
    "s_clz_i32_u64": ("i32 u64", im.leading_zeros),
    "s_ctz_i32_b32": ("i32 u32", im.trailing_zeros),
    "s_ctz_i32_b64": ("i32 u64", im.trailing_zeros),
    "s_cls_i32": ("i32 i32", im.leading_signs),
    "s_cls_i32_i64": ("i32 i64", im.leading_signs),
    "s_sext_i32_i8": ("i32 u32", im.sext8),
    "s_sext_i32_i16": ("i32 u32", im.sext16),
    "s_pack_ll_b32_b16": ("u32 u32 u32", im.pack16),
    "s_pack_lh_b32_b16": ("u32 u32 u32", lambda a, b: im.pack16(a, b >> np.uint32(16))),
    "s_pack_hl_b32_b16": ("u32 u32 u32", lambda a, b: im.pack16(a >> np.uint32(16), b)),
    "s_pack_hh_b32_b16": (
        "u32 u32 u32", lambda a, b: im.pack16(a >> np.uint32(16), b >> np.uint32(16)),
    ),
    "s_add_f32": ("f32 f32 f32", np.add),
    "s_sub_f32": ("f32 f32 f32", np.subtract),
    "s_mul_f32": ("f32 f32 f32", np.multiply),
    "s_max_f32": ("f32 f32 f32", fm.maximum),
    "s_min_f32": ("f32 f32 f32", fm.minimum),
    "s_cvt_f32_i32": ("f32 i32", lambda a: a.astype(np.float32)),
    "s_cvt_f32_u32": ("f32 u32", lambda a: a.astype(np.float32)),
    "s_cvt_i32_f32": ("i32 f32", fm.to_i32),
    "s_cvt_u32_f32": ("u32 f32", fm.to_u32),
    "s_ceil_f32": ("f32 f32", np.ceil),
    "s_floor_f32": ("f32 f32", np.floor),
    "s_trunc_f32": ("f32 f32", np.trunc),
    "s_rndne_f32": ("f32 f32", np.rint),
    "s_cvt_pk_rtz_f16_f32": (
        "u32 f32 f32", lambda a, b: im.pack16(fm.half_toward_zero(a), fm.half_toward_zero(b)),
    ),
}  # fmt: skip

# Operations with an SCC of their own: the function gives (result, SCC).
_OWN_SCC: dict[str, tuple[str, Callable[..., Any]]] = {
    "s_add_u32": ("u32 u32 u32", lambda a, b: (a + b, a + b < a)),
    "s_sub_u32": ("u32 u32 u32", lambda a, b: (a - b, b > a)),
    "s_add_i32": ("i32 i32 i32", lambda a, b: (a + b, _overflow(a, b, _wide(a) + b))),
    "s_sub_i32": ("i32 i32 i32", lambda a, b: (a - b, _overflow(a, b, _wide(a) - b))),
    "s_max_i32": ("i32 i32 i32", lambda a, b: (np.maximum(a, b), a >= b)),
    "s_min_i32": ("i32 i32 i32", lambda a, b: (np.minimum(a, b), a < b)),
    "s_max_u32": ("u32 u32 u32", lambda a, b: (np.maximum(a, b), a >= b)),
    "s_min_u32": ("u32 u32 u32", lambda a, b: (np.minimum(a, b), a < b)),
}
for _n in range(1, 5):
    _OWN_SCC[f"s_lshl{_n}_add_u32"] = (
        "u32 u32 u32",
        lambda a, b, _k=_n: (
            (a << np.uint32(_k)) + b, (a.astype(_u64) << _u64(_k)) + b > 0xFFFFFFFF
        ),
    )  # fmt: skip

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "lg": np.not_equal, "gt": np.greater, "ge": np.greater_equal,
    "lt": np.less, "le": np.less_equal, "neq": np.not_equal,
    "nlt": lambda a, b: ~(a < b), "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b), "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "u": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip
_CMP = re.compile(r"s_cmp(k?)_([a-z]+)_([iuf]\d+)$")
_BITCMP = re.compile(r"s_bitcmp([01])_b(32|64)$")
_SAVEEXEC = re.compile(r"s_(\w+?)_(saveexec|wrexec)_b(32|64)$")


def _sources(state: State, inst: Instruction, kinds: list[str]) -> list[Source]:
    literal = inst.get("literal")
    names = ("ssrc0", "ssrc1")
    return [source(state, k, inst.fields[n], literal) for k, n in zip(kinds, names, strict=False)]


def put_scalar(state: State, register: int, kind: str) -> Callable[[Any], None]:
    """A writer of a scalar register of a kind, whatever array comes in."""
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
    for table, scc in ((_NONZERO, "nonzero"), (_PLAIN, ""), (_OWN_SCC, "own")):
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
    function = _LOGIC[name][1]
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
    "s_fmac_f32": _scalar_fma,
    "s_fmamk_f32": _scalar_fma,
    "s_fmaak_f32": _scalar_fma,
}
