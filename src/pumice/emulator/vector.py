"""Binds vector instructions of the table, and VOPD pairs, to closures over the registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator.decode import Instruction
from pumice.emulator.float_math import flush
from pumice.emulator.lanes import dpp_keeps, dpp_source, sdwa_put, sdwa_source
from pumice.emulator.operands import Source, destination, source, vector_put
from pumice.emulator.sanitizer import Watch
from pumice.emulator.state import VCC, State
from pumice.emulator.vector_table import SATURATES, VECTOR, Operation
from pumice.errors import UnimplementedInstructionError

Step = Callable[[], None]
_FLOATS = ("f32", "h", "f64")
_OMOD = {1: 2.0, 2: 4.0, 3: 0.5}


def operand_codes(inst: Instruction, count: int) -> list[int]:
    """Source numbers in order, whatever the encoding calls them."""
    f = inst.fields
    codes = [f["src0"]] if "src0" in f else []
    if "vsrc1" in f:
        codes.append(f["vsrc1"])
    elif "src1" in f:
        codes.append(f["src1"])
    if "src2" in f:
        codes.append(f["src2"])
    return codes[:count]


def sources(state: State, inst: Instruction, kinds: tuple[str, ...]) -> list[Source]:
    """Bind the sources with the encoding's modifiers: neg, abs, op_sel, DPP, SDWA."""
    codes = operand_codes(inst, len(kinds))
    literal = inst.get("literal")
    neg, absolute, opsel = inst.get("neg"), inst.get("abs"), inst.get("opsel")
    vop3 = inst.encoding.startswith("VOP3")
    found = []
    for i, (code, kind) in enumerate(zip(codes, kinds, strict=False)):
        if i == 0 and code == 249 and "SDWA" in inst.encoding:
            found.append(sdwa_source(state, inst, kind, 0))
            continue
        if i == 1 and "SDWA" in inst.encoding:
            found.append(sdwa_source(state, inst, kind, 1))
            continue
        if "DPP" in inst.encoding:
            negated = inst.get(f"src{i}_neg") | (neg >> i & 1)
            positive = inst.get(f"src{i}_abs") | (absolute >> i & 1)
            if i == 0:
                found.append(dpp_source(state, inst, kind, negated, positive, opsel & 1))
                continue
            high, code = half_of(state, code, kind, vop3, opsel >> i & 1)
            found.append(source(state, kind, code, high=high, neg=negated, absolute=positive))
            continue
        high, code = half_of(state, code, kind, vop3, opsel >> i & 1)
        found.append(
            source(
                state, kind, code, literal,
                high=high, neg=neg >> i & 1, absolute=absolute >> i & 1,
            )
        )  # fmt: skip
    return found


def half_of(state: State, code: int, kind: str, vop3: bool, selected: int) -> tuple[int, int]:
    """(which half, register number) of a source. RDNA's short encodings put the half in bit 7."""
    if kind not in ("h", "u16", "i16"):
        return 0, code
    if vop3:
        return selected, code
    if code >= 256 and not state.cdna:
        return code >> 7 & 1, code & ~128
    return 0, code


def _modified(state: State, inst: Instruction, operation: Operation) -> Callable[..., Any]:
    """The function with omod, clamp and flushing of denormals around it."""
    function = operation.function
    clamp, omod = inst.get("clmp"), inst.get("omod")
    if operation.result in _FLOATS:
        if omod:
            scale, inner = _OMOD[omod], function
            function = lambda *a: np.multiply(inner(*a), np.float32(scale))  # noqa: E731
        if clamp:
            wrapped = function
            function = lambda *a: clamp01(wrapped(*a))  # noqa: E731
        if operation.result == "f32" and state.flush32:
            last = function
            function = lambda *a: flush(last(*a).astype(np.float32))  # noqa: E731
        return function
    if clamp:
        bounds = SATURATES.get(inst.name)
        if bounds is None:
            raise UnimplementedInstructionError("its clamp bit, on an integer result")
        exact, low, high = bounds
        return lambda *a: np.clip(exact(*a), low, high)
    return function


def clamp01(a: Any) -> Any:
    """Within [0, 1]; NaN becomes 0 (DX10_CLAMP)."""
    return np.where(np.isnan(a), np.float32(0), np.clip(a, 0, 1))


def bind_vector(state: State, inst: Instruction, watch: Watch | None) -> Step | None:
    """A closure for an operation of the table, None when it is not one."""
    operation = VECTOR.get(inst.name)
    if operation is None:
        return None
    kinds = operation.sources
    name = inst.name
    if name.startswith(("v_fmamk", "v_fmaak")):
        bound = _fma_constant(state, inst, kinds[0])
    elif operation.accumulate:
        bound = sources(state, inst, kinds[:-1])
        index = inst.vdst
        high, index = _half_destination(state, inst, operation.result)
        bound.append(source(state, kinds[-1], index, high=high))
    else:
        bound = sources(state, inst, kinds)
    function = _modified(state, inst, operation)
    if "SDWA" in inst.encoding:
        put = sdwa_put(state, inst, operation.result)
    elif name.startswith("v_s_"):
        put = _scalar_destination(state, inst, operation.result)
    else:
        high, number = _half_destination(state, inst, operation.result)
        # CDNA clears the other half of a 16-bit result; RDNA and an explicit op_sel keep it.
        keep = not state.cdna or bool(inst.get("opsel") & 8)
        put = vector_put(state, operation.result, destination(number), high=high, keep=keep)
    if "DPP" in inst.encoding:
        put = dpp_masked(state, inst, put)
    return assemble(inst, function, bound, put, watch if operation.result in _FLOATS else None)


def _half_destination(state: State, inst: Instruction, kind: str) -> tuple[int, int]:
    number = inst.vdst
    if kind not in ("h", "u16", "i16"):
        return 0, number
    if inst.encoding.startswith("VOP3"):
        return inst.get("opsel") >> 3 & 1, number
    if not state.cdna:
        return number >> 7 & 1 if number >= 256 else 0, number & ~128
    return 0, number


def _scalar_destination(state: State, inst: Instruction, kind: str) -> Callable[[Any], None]:
    """v_s_exp_f32 and its like write a scalar register."""
    register = inst.vdst if inst.vdst < 256 else inst.vdst - 256

    def put(value: Any) -> None:
        found = np.asarray(value)
        if kind == "h":
            bits = found.astype(np.float16).view(np.uint16).astype(np.uint32)
        else:
            bits = found.astype(np.float32).view(np.uint32)
        state.put_scalar(register, bits[:, :1] if bits.ndim == 2 else bits)

    return put


def dpp_masked(state: State, inst: Instruction, put: Callable[[Any], None]) -> Any:
    """Lanes that DPP's row and bank masks, or a source that is not there, keep from writing."""
    keeps = dpp_keeps(state, inst)
    if keeps is None:
        return put

    def masked(value: Any) -> None:
        if state.dirty:
            state.refresh()
        mask, full = state.mask, state.full
        state.mask, state.full = mask & keeps(), False
        try:
            put(value)
        finally:
            state.mask, state.full = mask, full

    return masked


def assemble(
    inst: Instruction,
    function: Callable[..., Any],
    bound: list[Source],
    put: Callable[[Any], None],
    watch: Watch | None,
) -> Step:
    """One closure out of sources, function and writer, short for the common counts."""
    if watch is not None:
        found = watch

        def watched() -> None:
            values = [b.get() for b in bound]
            result = function(*values)
            if found.invalid:
                found.nan(inst, result, values)
            put(result)

        return watched
    if all(b.array is not None for b in bound):
        fixed: list[Any] = [b.array for b in bound]
        if len(fixed) == 1:
            (x,) = fixed
            return lambda: put(function(x))
        if len(fixed) == 2:
            x, y = fixed
            return lambda: put(function(x, y))
        if len(fixed) == 3:
            x, y, z = fixed
            return lambda: put(function(x, y, z))
    getters = [b.get for b in bound]
    if len(getters) == 1:
        (g,) = getters
        return lambda: put(function(g()))
    if len(getters) == 2:
        g, h = getters
        return lambda: put(function(g(), h()))
    return lambda: put(function(*[get() for get in getters]))


def _fma_constant(state: State, inst: Instruction, kind: str) -> list[Source]:
    """fmamk: src0 · K + vsrc1; fmaak: src0 · vsrc1 + K."""
    high0, code0 = half_of(state, inst.src0, kind, False, 0)
    high1, code1 = half_of(state, inst.vsrc1, kind, False, 0)
    first = source(state, kind, code0, inst.literal, high=high0)
    register = source(state, kind, code1, high=high1)
    literal = source(state, kind, 255, inst.literal)
    return [first, literal, register] if "fmamk" in inst.name else [first, register, literal]


def bind_dual(state: State, inst: Instruction, watch: Watch | None) -> Step:
    """VOPD: both halves read their sources before either writes."""
    names = [part.removeprefix("v_dual_") for part in inst.mnemonic.split(" :: ")]
    halves = []
    for name, axis in zip(names, "xy", strict=True):
        halves.append(_dual_half(state, inst, name.replace("_num_", "_"), axis))
    (f0, b0, p0), (f1, b1, p1) = halves
    g0, g1 = [b.get for b in b0], [b.get for b in b1]

    def run() -> None:
        values0, values1 = [g() for g in g0], [g() for g in g1]
        first, second = f0(*values0), f1(*values1)
        if watch is not None and watch.invalid:
            watch.nan(inst, first, values0)
            watch.invalid = True
            watch.nan(inst, second, values1)
        if second.base is not None or second.ndim < 2:
            second = second.copy()  # it may be a view of a register that the first half writes
        p0(first)
        p1(second)

    return run


def _dual_half(state: State, inst: Instruction, name: str, axis: str) -> Any:
    f = inst.fields
    src0, vsrc1, vdst = f[f"src{axis}0"], f[f"vsrc{axis}1"], f[f"vdst{axis}"]
    literal = inst.get("literal")
    if name == "cndmask_b32":
        bound = [source(state, "u32", src0, literal), source(state, "u32", vsrc1)]
        bound.append(Source(None, lambda: state.lanes_of(VCC)))
        put = vector_put(state, "u32", destination(vdst))
        return (lambda a, b, c: np.where(c, b, a)), bound, put
    if name.startswith("dot2acc"):
        from pumice.emulator.dots import DOT2

        function = DOT2[name.removeprefix("dot2acc_f32_")]
        bound = [
            source(state, "u32", src0, literal),
            source(state, "u32", vsrc1),
            source(state, "f32", vdst),
        ]
        return function, bound, vector_put(state, "f32", destination(vdst))
    operation = VECTOR[f"v_{name}"]
    kinds = operation.sources
    bound = [source(state, kinds[0], src0, literal)]
    if name.startswith("fmamk"):
        bound += [source(state, "f32", 255, literal), source(state, "f32", vsrc1)]
    elif name.startswith("fmaak"):
        bound += [source(state, "f32", vsrc1), source(state, "f32", 255, literal)]
    else:
        if len(kinds) > 1:
            bound.append(source(state, kinds[1], vsrc1))
        if operation.accumulate:
            bound.append(source(state, kinds[2], vdst))
    function = operation.function
    if state.flush32 and operation.result == "f32":
        plain = function
        function = lambda *a: flush(plain(*a).astype(np.float32))  # noqa: E731
    return function, bound, vector_put(state, operation.result, destination(vdst))
