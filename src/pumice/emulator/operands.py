"""Operands: from a source's 9-bit number to something that yields its value, and back to registers.

Numbers follow the ISA documents' table "Source operands": 0-105 scalar registers, 106 VCC, 124 null
or M0, 126 EXEC, 128-208 small integers, 240-248 small floats, 253 SCC, 255 a literal, 256- vector
registers (and, in this package, 512- accumulation registers).

Kinds: u32 i32 f32 · u16 i16 · h (a float16 taken as float32, for which most operations are exact)
· u64 i64 f64.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator.memory import PRIVATE_APERTURE, SHARED_APERTURE
from pumice.emulator.state import EXEC, VCC, Array, State, Values
from pumice.errors import UnimplementedInstructionError

Getter = Callable[[], Values]
_FLOATS = {
    240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0,
    248: 1.0 / (2.0 * math.pi),
}  # fmt: skip
_NUMPY: dict[str, Any] = {
    "u32": np.uint32, "i32": np.int32, "f32": np.float32, "u16": np.uint16, "i16": np.int16,
    "h": np.float32, "u64": np.uint64, "i64": np.int64, "f64": np.float64,
}  # fmt: skip


class Source:
    """A bound operand: `array` when its value lives in one place for ever, else `get`."""

    __slots__ = ("array", "get")

    def __init__(self, array: Array | None, get: Getter | None = None) -> None:
        self.array = array
        self.get: Getter = get if get is not None else lambda: array


def _bits_as(kind: str, bits: int) -> Array:
    """A constant of 32 or 64 bits as an array without dimensions."""
    if kind in ("u16", "i16"):
        return np.array(bits & 0xFFFF, np.uint16).view(_NUMPY[kind])
    if kind == "h":
        return np.array(bits & 0xFFFF, np.uint16).view(np.float16).astype(np.float32)
    if kind.endswith("64"):
        return np.array(bits & 0xFFFF_FFFF_FFFF_FFFF, np.uint64).view(_NUMPY[kind])
    return np.array(bits & 0xFFFF_FFFF, np.uint32).view(_NUMPY[kind])


@functools.lru_cache(maxsize=65536)
def constant(kind: str, code: int, literal: int) -> Array | None:
    """The value of a constant operand, None when `code` is a register. Arrays are read-only."""
    value = _constant(kind, code, literal)
    if value is not None:
        value.flags.writeable = False
    return value


def _constant(kind: str, code: int, literal: int) -> Array | None:
    if 128 <= code <= 192:
        return _bits_as(kind, code - 128)
    if 193 <= code <= 208:
        return _bits_as(kind, 192 - code)
    if code in _FLOATS:
        value = _FLOATS[code]
        if kind == "h":
            return np.array(np.float16(value), np.float32)
        if kind in ("u16", "i16"):
            bits = int(np.array(value, np.float16).view(np.uint16))
        elif kind in ("f64", "u64", "i64"):
            bits = struct.unpack("<Q", struct.pack("<d", value))[0]
        else:
            bits = struct.unpack("<I", struct.pack("<f", value))[0]
        return _bits_as(kind, bits)
    if code == 255:
        if kind == "f64":
            return _bits_as(kind, literal << 32)
        if kind == "i64" and literal >> 31:
            return _bits_as(kind, literal | 0xFFFF_FFFF << 32)
        return _bits_as(kind, literal)
    if 235 <= code <= 238:
        base = (SHARED_APERTURE, SHARED_APERTURE | 0xFFFF_FFFF, PRIVATE_APERTURE,
                PRIVATE_APERTURE | 0xFFFF_FFFF)[code - 235]  # fmt: skip
        return _bits_as(kind, base if kind.endswith("64") else base >> 32)
    return None


def _special(state: State, kind: str, code: int) -> Getter | None:
    def zero_of(register: int) -> Values:
        if state.lanes == 32:
            return state.s[:, register : register + 1] == 0
        return state.s64[:, register // 2 : register // 2 + 1] == 0

    kinds = _NUMPY[kind]
    if code == 253:
        return lambda: state.scc.astype(kinds)
    if code == 251:
        return lambda: zero_of(VCC).astype(kinds)
    if code == 252:
        return lambda: zero_of(EXEC).astype(kinds)
    return None


def pair_getter(state: State, index: int) -> Callable[[], Array]:
    """Two vector registers as uint64 [waves, lanes]; the array is made anew each time."""
    low, high = state.row("u32", index), state.row("u32", index + 1)
    shape = (state.waves, state.lanes)

    def get() -> Array:
        wide = np.empty(shape, np.uint64)
        halves = wide.view(np.uint32)
        halves[:, 0::2] = low
        halves[:, 1::2] = high
        return wide

    return get


def source(
    state: State,
    kind: str,
    code: int,
    literal: int = 0,
    *,
    high: int = 0,
    neg: int = 0,
    absolute: int = 0,
) -> Source:
    """Bind one source. neg and absolute apply to floats (and to bits of masks, as floats)."""
    made = _plain(state, kind, code, literal, high)
    if not (neg or absolute):
        return made
    if kind not in ("f32", "h", "f64", "u32", "i32"):
        raise UnimplementedInstructionError(f"neg or abs of an operand of kind {kind}")
    get = made.get
    if kind in ("u32", "i32"):  # the sign bit of a float that is taken as bits
        keep = np.array(0x7FFF_FFFF if absolute else 0xFFFF_FFFF, np.uint32)
        flip = np.array(0x8000_0000 if neg else 0, np.uint32)
        return Source(None, lambda: ((get().view(np.uint32) & keep) ^ flip).view(_NUMPY[kind]))
    if neg and absolute:
        return Source(None, lambda: np.negative(np.abs(get())))
    if neg:
        return Source(None, lambda: np.negative(get()))
    return Source(None, lambda: np.abs(get()))


def _plain(state: State, kind: str, code: int, literal: int, high: int) -> Source:
    if code >= 256:
        return _vector(state, kind, code - 256, high)
    if code < 128:
        return _scalar(state, kind, code, high)
    value = constant(kind, code, literal if code == 255 else 0)
    if value is not None:
        if high and code == 255:
            value = _bits_as(kind, literal >> 16)
        return Source(value)
    special = _special(state, kind, code)
    if special is not None:
        return Source(None, special)
    raise UnimplementedInstructionError(f"the source operand {code}")


def _vector(state: State, kind: str, index: int, high: int) -> Source:
    if index >= state.v.shape[0]:
        raise UnimplementedInstructionError(
            f"vector register {index} of a kernel with {state.v.shape[0]}"
        )
    if kind in ("u16", "i16"):
        return Source(state.half(kind, index, high))
    if kind == "h":
        half = state.half("f16", index, high)
        return Source(None, lambda: half.astype(np.float32))
    if kind.endswith("64"):
        get = pair_getter(state, index)
        if kind == "u64":
            return Source(None, get)
        return Source(None, lambda: get().view(_NUMPY[kind]))
    return Source(state.row(kind, index))


def _scalar(state: State, kind: str, code: int, high: int) -> Source:
    if kind in ("u16", "i16"):
        return Source(state.half_column(kind, code, high))
    if kind == "h":
        column = state.half_column("f16", code, high)
        return Source(None, lambda: column.astype(np.float32))
    if kind.endswith("64") and code % 2:  # an odd pair
        low, top = state.column("u32", code), state.column("u32", code + 1)

        def pair() -> Values:
            wide = low.astype(np.uint64) | top.astype(np.uint64) << np.uint64(32)
            return wide.view(_NUMPY[kind])

        return Source(None, pair)
    return Source(state.column(kind, code))


Putter = Callable[[Any], None]


def vector_put(state: State, kind: str, index: int, *, high: int = 0, keep: bool = True) -> Putter:
    """A writer of vector register `index` (row number) for the lanes that take part.

    16-bit kinds write one half; `keep` says whether the other half stays (RDNA) or becomes 0
    (CDNA).
    """
    if kind in ("u16", "i16", "h", "f16"):
        half = state.half("f16" if kind in ("h", "f16") else kind, index, high)
        other = None if keep or high else state.half("u16", index, 1)

        def put16(value: Any) -> None:
            if state.dirty:
                state.refresh()
            if state.full:
                half[...] = value
                if other is not None:
                    other[...] = 0
            else:
                np.copyto(half, value, where=state.mask, casting="unsafe")
                if other is not None:
                    np.copyto(other, 0, where=state.mask)

        return put16
    if kind.endswith("64"):
        low, top = state.row("u32", index), state.row("u32", index + 1)
        shape = (state.waves, state.lanes)

        def put64(value: Any) -> None:
            if value.shape != shape:
                value = np.broadcast_to(value, shape)
            halves = np.ascontiguousarray(value).view(np.uint32)
            if state.dirty:
                state.refresh()
            if state.full:
                low[...] = halves[:, 0::2]
                top[...] = halves[:, 1::2]
            else:
                np.copyto(low, halves[:, 0::2], where=state.mask)
                np.copyto(top, halves[:, 1::2], where=state.mask)

        return put64
    row = state.row(kind, index)

    def put(value: Any) -> None:
        if state.dirty:
            state.refresh()
        if state.full:
            row[...] = value
        else:
            np.copyto(row, value, where=state.mask, casting="unsafe")

    return put


def destination(inst_vdst: int) -> int:
    """Row of a vector destination (the 9-bit number less 256)."""
    return inst_vdst - 256
