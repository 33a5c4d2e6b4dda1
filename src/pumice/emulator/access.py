"""Loads, stores and atomics of vector memory, in any address space.

An instruction module computes int64 addresses [waves, lanes]; this one checks them, moves the data
between registers and the space, and counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pumice.emulator.decode import Instruction
from pumice.emulator.spaces import Space
from pumice.emulator.state import Array, State
from pumice.errors import UnimplementedInstructionError


@dataclass
class Traffic:
    """Counts of one launch: bytes, 64- and 128-byte segments, LDS conflicts; by space."""

    measure: bool = True
    bytes_read: dict[str, int] = field(default_factory=dict)
    bytes_written: dict[str, int] = field(default_factory=dict)
    segments_64: int = 0
    segments_128: int = 0
    global_accesses: int = 0  # wave-level instructions
    lds_accesses: int = 0
    lds_conflicts: int = 0  # cycles beyond the first, over all accesses


@dataclass(frozen=True)
class Shape:
    """What one access moves: bytes of an element, elements, and how a small one is extended."""

    size: int  # bytes of one element in memory: 1, 2 or 4
    count: int  # elements, one a register
    signed: bool = False
    half: int | None = None  # 0 or 1: only that half of the register is written or read

    @property
    def bytes(self) -> int:
        return self.size * self.count


def shape_of(name: str) -> Shape:
    """The shape of "b32", "b128", "u8", "i16", "d16_hi_b16", "d16_u8" ..."""
    half: int | None = None
    if "d16_hi" in name:
        half = 1
    elif "d16" in name:
        half = 0
    kind = name.replace("d16_hi", "").replace("d16", "").strip("_")
    bits = int(kind[1:])
    if bits <= 16:
        return Shape(bits // 8, 1, kind[0] == "i", half)
    return Shape(4, bits // 32)


def chosen_lanes(state: State) -> Array | None:
    """Flat numbers of the lanes that take part; None when there is none."""
    if state.dirty:
        state.refresh()
    if state.full:
        return state.every
    flat = np.flatnonzero(state.mask)
    return flat if flat.size else None


_EXTEND: dict[tuple[int, bool], Any] = {(1, True): np.int8, (2, True): np.int16}


def load(
    state: State,
    inst: Instruction,
    space: Space,
    shape: Shape,
    register: int,
    traffic: Traffic,
) -> Callable[[Array, Array], None]:
    """A function of (addresses of the chosen lanes, their flat numbers) that fills registers."""
    rows = [state.v[register + i].reshape(-1) for i in range(shape.count)]
    view = space.views[shape.size]
    size, total = shape.size, shape.bytes
    halves = None
    if shape.half is not None:
        halves = state.v[register].reshape(-1).view(np.uint16)[shape.half :: 2]
    every = state.waves * state.lanes
    shift = {1: 0, 2: 1, 4: 2}[size]

    def run(addresses: Array, flat: Array) -> None:
        offsets, good = space.locate(inst, addresses, flat, total)
        if good is not None:
            for row in rows:
                row[flat[~good]] = 0
            offsets, flat = offsets[good], flat[good]
        if space.watched:
            space.note_read(inst, offsets, flat, total)
        count_traffic(traffic, state, space, offsets, flat, shape, False)
        if size == 4 and int(np.bitwise_or.reduce(offsets, initial=0)) & 3:
            _load_unaligned(space, offsets, flat, rows)
            return
        if size == 2 and int(np.bitwise_or.reduce(offsets, initial=0)) & 1:
            raise UnimplementedInstructionError("a 16-bit load at an odd address")
        at = offsets >> shift if shift else offsets
        if halves is not None:
            value = view[at]
            if size == 1:
                value = value.astype(np.int8) if shape.signed else value
                value = value.astype(np.int16)
            halves[flat] = value
            return
        whole = flat.size == every
        for i, row in enumerate(rows):
            value = view[at + i] if i else view[at]
            if size < 4:
                if shape.signed:
                    value = value.view(_EXTEND[(size, True)]).astype(np.int32).view(np.uint32)
                else:
                    value = value.astype(np.uint32)
            if whole:
                row[...] = value
            else:
                row[flat] = value

    return run


def _load_unaligned(space: Space, offsets: Array, flat: Array, rows: list[Array]) -> None:
    data = space.views[1]
    for i, row in enumerate(rows):
        value = np.zeros(offsets.shape, np.uint32)
        for byte in range(4):
            value |= data[offsets + 4 * i + byte].astype(np.uint32) << np.uint32(8 * byte)
        row[flat] = value


def store(
    state: State,
    inst: Instruction,
    space: Space,
    shape: Shape,
    register: int,
    traffic: Traffic,
) -> Callable[[Array, Array], None]:
    """A function of (addresses, flat lanes) that writes registers to the space."""
    rows = [state.v[register + i].reshape(-1) for i in range(shape.count)]
    view = space.views[shape.size]
    size, total = shape.size, shape.bytes
    kind = view.dtype
    shift = {1: 0, 2: 1, 4: 2}[size]
    down = np.uint32(16) if shape.half == 1 else None

    def run(addresses: Array, flat: Array) -> None:
        offsets, good = space.locate(inst, addresses, flat, total)
        if good is not None:
            offsets, flat = offsets[good], flat[good]
        values = [row[flat] for row in rows]
        if down is not None:
            values = [value >> down for value in values]
        values = [value.astype(kind) for value in values] if size < 4 else values
        count_traffic(traffic, state, space, offsets, flat, shape, True)
        if size > 1 and int(np.bitwise_or.reduce(offsets, initial=0)) & (size - 1):
            for i, value in enumerate(values):
                for byte in range(size):
                    part = (value >> kind.type(8 * byte)).astype(np.uint8)
                    space.views[1][offsets + size * i + byte] = part
            return
        at = offsets >> shift if shift else offsets
        if space.watched:
            changed = view[at] != values[0]
            for i in range(1, len(values)):
                changed |= view[at + i] != values[i]
            space.note_write(inst, offsets, flat, total, changed)
        for i, value in enumerate(values):
            view[at + i if i else at] = value

    return run


def count_traffic(
    traffic: Traffic,
    state: State,
    space: Space,
    offsets: Array,
    flat: Array,
    shape: Shape,
    writing: bool,
) -> None:
    """Bytes always; segments and bank conflicts when the launch measures them."""
    table = traffic.bytes_written if writing else traffic.bytes_read
    table[space.name] = table.get(space.name, 0) + offsets.size * shape.bytes
    if not traffic.measure or not offsets.size:
        return
    wave = flat // state.lanes
    if space.name == "global":
        traffic.global_accesses += _distinct(wave)
        for bits in (6, 7):
            first = wave << 48 | offsets >> bits
            last = wave << 48 | (offsets + shape.bytes - 1) >> bits
            keys = first if np.array_equal(first, last) else np.concatenate([first, last])
            count = np.unique(keys).size
            if bits == 6:
                traffic.segments_64 += count
            else:
                traffic.segments_128 += count
    elif space.name == "LDS":
        waves = _distinct(wave)
        traffic.lds_accesses += waves
        words = np.unique(wave << 32 | offsets >> 2)  # lanes that share a word share the cycle
        banks = (words >> 32) * 32 + (words & 31)
        most = np.bincount(banks - banks.min())
        per_wave: dict[int, int] = {}
        low = int(banks.min())
        for bank in np.flatnonzero(most):
            owner = (int(bank) + low) // 32
            per_wave[owner] = max(per_wave.get(owner, 0), int(most[bank]))
        traffic.lds_conflicts += sum(value - 1 for value in per_wave.values())


def _distinct(sorted_values: Array) -> int:
    return int(1 + np.count_nonzero(np.diff(sorted_values)))
