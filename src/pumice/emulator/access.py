"""Loads, stores and atomics of vector memory, in any address space.

An instruction module computes int64 addresses [waves, lanes]; this one checks them, moves the data
between registers and the space, and counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator.decode import Instruction
from pumice.emulator.spaces import Space
from pumice.emulator.state import Array, State
from pumice.emulator.traffic import Shape, Traffic, count_traffic


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
    between: list[Array] | None = None,
) -> Callable[[Array, Array], None]:
    """A function of (addresses of the chosen lanes, their flat numbers) that fills registers, or
    what stands `between` two memories in their place: an array of all lanes' words each."""
    rows = between or [state.v[register + i].reshape(-1) for i in range(shape.count)]
    view = space.views[shape.size]
    size, total = shape.size, shape.bytes
    halves = None
    if shape.half is not None:
        halves = state.v[register].reshape(-1).view(np.uint16)[shape.half :: 2]
    every = state.waves * state.lanes
    shift = {1: 0, 2: 1, 4: 2}[size]
    several = None if between else _several(state, space, shape, register)

    def run(addresses: Array, flat: Array) -> None:
        offsets, good = space.locate(inst, addresses, flat, total)
        if good is not None:
            for row in rows:
                row[flat[~good]] = 0
            offsets, flat = offsets[good], flat[good]
        if space.watched:
            space.note_read(inst, offsets, flat, total)
        count_traffic(traffic, state, space, offsets, flat, shape, False)
        misplaced = int(np.bitwise_or.reduce(offsets, initial=0)) if size > 1 else 0
        if size == 4 and misplaced & 3:
            _load_unaligned(space, offsets, flat, rows)
            return
        if several is not None and not misplaced & (total - 1):
            registers, words = several
            block = words.take(offsets // total, axis=0).T  # faster than an index
            if flat.size == every:
                np.copyto(registers, block)
            else:
                registers[:, flat] = block
            return
        at = offsets >> shift if shift else offsets
        odd = size == 2 and misplaced & 1
        if halves is not None:
            value = _odd_words(space, offsets) if odd else view.take(at)
            if size == 1:
                value = value.astype(np.int8) if shape.signed else value
                value = value.astype(np.int16)
            halves[flat] = value
            return
        whole = flat.size == every
        for i, row in enumerate(rows):
            value = _odd_words(space, offsets) if odd else view.take(at + i if i else at)
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


def _several(state: State, space: Space, shape: Shape, register: int) -> tuple[Array, Array] | None:
    """(registers [count, lanes], memory [-1, count]) where 2 or 4 words can move as one."""
    if shape.size != 4 or shape.count not in (2, 4) or space.views[4].size % shape.count:
        return None
    registers = state.v[register : register + shape.count].reshape(shape.count, -1)
    return registers, space.views[4].reshape(-1, shape.count)


def _odd_words(space: Space, offsets: Array) -> Array:
    """16-bit words at any address."""
    data = space.views[1]
    low, high = data[offsets].astype(np.uint16), data[offsets + 1].astype(np.uint16)
    words: Array = low | high << np.uint16(8)
    return words


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
    between: list[Array] | None = None,
) -> Callable[[Array, Array], None]:
    """A function of (addresses, flat lanes) that writes registers, or `between`, to the space."""
    rows = between or [state.v[register + i].reshape(-1) for i in range(shape.count)]
    view = space.views[shape.size]
    size, total = shape.size, shape.bytes
    kind = view.dtype
    shift = {1: 0, 2: 1, 4: 2}[size]
    down = np.uint32(16) if shape.half == 1 else None
    several = None if between or space.watched else _several(state, space, shape, register)
    every = state.waves * state.lanes

    def run(addresses: Array, flat: Array) -> None:
        offsets, good = space.locate(inst, addresses, flat, total)
        if good is not None:
            offsets, flat = offsets[good], flat[good]
        if several is not None and not int(np.bitwise_or.reduce(offsets, initial=0)) & (total - 1):
            count_traffic(traffic, state, space, offsets, flat, shape, True)
            registers, words = several
            chosen = registers if flat.size == every else registers.take(flat, axis=1)
            words[offsets // total] = chosen.T
            return
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
            space.note_write(inst, offsets, flat, total, lambda: _changed(view, at, values))
        for i, value in enumerate(values):
            view[at + i if i else at] = value

    return run


def _changed(view: Array, at: Array, values: list[Array]) -> Array:
    """Which lanes' stores change what memory holds."""
    changed: Array = view[at] != values[0]
    for i in range(1, len(values)):
        changed |= view[at + i] != values[i]
    return changed
