"""Vector instructions with lane masks: compares, carries, selects, helpers of division."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator import float_math as fm
from pumice.emulator.decode import Instruction
from pumice.emulator.lanes import dpp_keeps
from pumice.emulator.operands import Source, destination, source, vector_put
from pumice.emulator.state import EXEC, VCC, State
from pumice.emulator.vector import dpp_masked, sources

Step = Callable[[], None]
_COMPARES: dict[str, Callable[[Any, Any], Any]] = {
    "f": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), bool),
    "t": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), bool),
    "tru": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), bool),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "neq": np.not_equal,
    "lg": lambda a, b: (a < b) | (a > b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "nlt": lambda a, b: ~(a < b),
    "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b),
    "nge": lambda a, b: ~(a >= b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
}
_CMP = re.compile(r"v_cmp(x?)_([a-z]+)_([fiu]\d+)$")
_KINDS = {"f16": "h"}


def _destination(inst: Instruction) -> int:
    """The scalar register of a compare's or carry's result."""
    if inst.encoding == "VOPC_SDWA_SDST":
        return inst.sdst if inst.sd else VCC
    if inst.encoding.startswith("VOP3SD"):
        return inst.sdst
    if inst.encoding.startswith("VOP3"):
        return inst.vdst if inst.vdst < 256 else inst.vdst - 256
    return VCC


def compare(state: State, inst: Instruction) -> Step | None:
    """v_cmp and v_cmpx of every kind; None for another instruction."""
    found = _CMP.match(inst.name)
    if not found:
        return None
    to_exec, name, kind = found.groups()
    kind = _KINDS.get(kind, kind)
    if name == "class":
        wanted = "u16" if kind == "h" else "u32"
        function: Any = fm.classify if kind != "h" else _classify16
        kinds: tuple[str, ...] = (("u16" if kind == "h" else kind), wanted)
    else:
        function, kinds = _COMPARES[name], (kind, kind)
    a, b = sources(state, inst, kinds)
    to = _destination(inst)
    get_a, get_b = a.get, b.get
    keeps = dpp_keeps(state, inst) if "DPP" in inst.encoding else None
    if keeps is not None:
        inner, kept = function, keeps
        function = lambda x, y: inner(x, y) & kept()  # noqa: E731
    if not to_exec:
        return lambda: state.put_lanes(to, function(get_a(), get_b()))

    def run() -> None:
        result = np.asarray(function(get_a(), get_b()))
        if state.cdna:
            state.put_lanes(to, result)
        state.put_lanes(EXEC, result)

    return run


def _classify16(a: Any, wanted: Any) -> Any:
    """A float16's class through float32, whose denormals are not float16's."""
    bits = np.asarray(a)
    top = bits >> np.uint16(10) & np.uint16(31)
    rest = bits & np.uint16(1023)
    negative = bits >> np.uint16(15) == 1
    bit = np.select(
        [
            (top == 31) & (rest != 0) & (rest < 512),
            (top == 31) & (rest != 0),
            top == 31,
            top > 0,
            rest != 0,
        ],
        [
            np.full(bits.shape, 0),
            np.full(bits.shape, 1),
            np.where(negative, 2, 9),
            np.where(negative, 3, 8),
            np.where(negative, 4, 7),
        ],
        np.where(negative, 5, 6),
    )
    return wanted.astype(np.int64) >> bit & 1 == 1


def _carry(state: State, inst: Instruction) -> Step:
    """v_add_co, v_sub_co, v_subrev_co with and without a carry-in."""
    carry_in = "_ci_" in inst.name
    a, b = sources(state, inst, ("u32", "u32"))
    if "subrev" in inst.name:
        a, b = b, a
    to = _destination(inst)
    mask_at = inst.get("src2", VCC) if inst.encoding.startswith("VOP3") else VCC
    put = _dpp(state, inst, vector_put(state, "u32", destination(inst.vdst)))
    get_a, get_b = a.get, b.get
    one, zero = np.uint32(1), np.uint32(0)
    subtract = "sub" in inst.name
    get_mask = _mask_source(state, mask_at).get if carry_in else None

    def run() -> None:
        x, y = get_a(), get_b()
        result = x - y if subtract else x + y
        carry = x < y if subtract else result < x
        if get_mask is not None:
            extra = np.where(get_mask(), one, zero)
            second = result - extra if subtract else result + extra
            carry = carry | (result < extra if subtract else second < result)
            result = second
        put(result)
        state.put_lanes(to, carry)

    return run


def _mask_source(state: State, code: int) -> Source:
    if code < 128:
        return Source(None, lambda: state.lanes_of(code))
    bits = source(state, "u32" if state.lanes == 32 else "u64", code)
    lane = np.arange(state.lanes)
    return Source(None, lambda: (np.asarray(bits.get()).astype(np.uint64) >> lane & 1) == 1)


def _cndmask(state: State, inst: Instruction) -> Step:
    """src1 where the mask is set, src0 elsewhere."""
    kind = "u16" if inst.name.endswith("b16") else "u32"
    if kind == "u16" and (inst.get("neg") or inst.get("abs")):
        kind = "h"
    a, b = sources(state, inst, (kind, kind))
    code = inst.src2 if inst.encoding.startswith("VOP3") else VCC
    mask = _mask_source(state, code)
    high = inst.get("opsel") >> 3 & 1
    put = _dpp(state, inst, vector_put(state, kind, destination(inst.vdst), high=high))
    get_a, get_b, get_mask = a.get, b.get, mask.get
    return lambda: put(np.where(get_mask(), get_b(), get_a()))


def _dpp(state: State, inst: Instruction, put: Any) -> Any:
    if "DPP" in inst.encoding:
        return dpp_masked(state, inst, put)
    return put


def _div_scale(state: State, inst: Instruction) -> Step:
    kind = inst.name[-3:]
    a, b, c = sources(state, inst, (kind, kind, kind))
    put = vector_put(state, kind, destination(inst.vdst))
    to = inst.sdst

    def run() -> None:
        value, flag = fm.div_scale(a.get(), b.get(), c.get())
        put(value)
        state.put_lanes(to, flag)

    return run


def _div_fmas(state: State, inst: Instruction) -> Step:
    """fma, with v_div_scale's scaling undone where VCC says that it was not by itself.

    The ISA documents multiply by 2^32 whatever was scaled, which can't give the quotient back: a
    denominator that was scaled up by 2^64 wants 2^64, a numerator 2^-64. The quotient's own size
    tells the two apart.
    """
    kind = inst.name[-3:]
    a, b, c = sources(state, inst, (kind, kind, kind))
    put = vector_put(state, kind, destination(inst.vdst))
    fma: Any = fm.fma32 if kind == "f32" else fm.fma64
    middle, power = (127, 64) if kind == "f32" else (1023, 128)

    def run() -> None:
        addend = c.get()
        value = fma(a.get(), b.get(), addend)
        scale = np.where(fm.exponent(addend) > middle, 2.0**power, 2.0**-power)
        put(np.where(state.lanes_of(VCC), value * scale, value))

    return run


def _mad64(state: State, inst: Instruction) -> Step:
    """v_mad_u64_u32 and v_mad_i64_i32: 32 × 32 + 64 with the carry out."""
    signed = "i64" in inst.name
    kind = "i32" if signed else "u32"
    a, b = sources(state, inst, (kind, kind))
    c = source(state, "i64" if signed else "u64", inst.src2, inst.get("literal"))
    put = vector_put(state, "u64", destination(inst.vdst))
    to = inst.sdst
    wide: Any = np.int64 if signed else np.uint64

    def run() -> None:
        product = a.get().astype(wide) * b.get().astype(wide)
        addend = np.asarray(c.get(), wide)
        total = product + addend
        put(total.view(np.uint64))
        if signed:
            carry = (total < product) ^ (addend < 0)
        else:
            carry = total < product
        state.put_lanes(to, np.asarray(carry))

    return run


MASKED: dict[str, Callable[[State, Instruction], Step]] = {
    "v_cndmask_b32": _cndmask,
    "v_cndmask_b16": _cndmask,
    "v_div_scale_f32": _div_scale,
    "v_div_scale_f64": _div_scale,
    "v_div_fmas_f32": _div_fmas,
    "v_div_fmas_f64": _div_fmas,
    "v_mad_u64_u32": _mad64,
    "v_mad_i64_i32": _mad64,
    **{
        f"v_{name}_co_{middle}u32": _carry
        for name in ("add", "sub", "subrev")
        for middle in ("", "ci_")
    },
}
