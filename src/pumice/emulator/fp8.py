"""FP8 conversions of the vector unit (RDNA4, CDNA3, CDNA4)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pumice.emulator import numbers
from pumice.emulator.decode import Instruction
from pumice.emulator.lanes import Step
from pumice.emulator.operands import vector_put
from pumice.emulator.state import State
from pumice.emulator.vector import sources

_U32 = np.uint32


def fp8_format(state: State, name: str) -> numbers.FloatFormat:
    """OCP formats, or on gfx942 the FNUZ ones."""
    key = "e4m3" if name == "fp8" else "e5m2"
    return numbers.FORMATS[key + ("fnuz" if state.arch == "gfx942" else "")]


def _from_fp8(state: State, inst: Instruction) -> Step:
    """v_cvt_f32_fp8 and bf8: one byte; v_cvt_pk_f32_fp8: two bytes to a register pair."""
    which = inst.name.rsplit("_", 1)[1]
    table = numbers.table(fp8_format(state, which), dtype="float32")
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
    target = fp8_format(state, inst.name.split("_")[3])
    a, b = sources(state, inst, ("f32", "f32"))
    put = vector_put(state, "u16", inst.vdst - 256, high=inst.get("opsel") >> 3 & 1)

    def run() -> None:
        low = numbers.encode(np.ascontiguousarray(a.get()), target).astype(np.uint16)
        high = numbers.encode(np.ascontiguousarray(b.get()), target).astype(np.uint16)
        put(low | high << np.uint16(8))

    return run


FP8: dict[str, Callable[[State, Instruction], Step]] = {
    "v_cvt_f32_fp8": _from_fp8,
    "v_cvt_f32_bf8": _from_fp8,
    "v_cvt_pk_f32_fp8": _from_fp8,
    "v_cvt_pk_f32_bf8": _from_fp8,
    "v_cvt_pk_fp8_f32": _to_fp8,
    "v_cvt_pk_bf8_f32": _to_fp8,
}
