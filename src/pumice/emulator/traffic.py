"""What one memory instruction moves, and the counts of a launch's memory traffic."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pumice.emulator.spaces import Space
from pumice.emulator.state import Array, State

_BANKS = 32
_COMPACTED = 256  # accesses whose lines are kept apart


@dataclass
class Traffic:
    """Counts of one launch: bytes, 64- and 128-byte segments, LDS conflicts; by space.

    lines_64: different 64-byte lines of global memory, counted once for each workgroup that touches
    them: what is left of the segments when a workgroup's own repetitions hit a cache.
    """

    measure: bool = True
    bytes_read: dict[str, int] = field(default_factory=dict)
    bytes_written: dict[str, int] = field(default_factory=dict)
    segments_64: int = 0
    segments_128: int = 0
    global_accesses: int = 0  # wave-level instructions
    lds_accesses: int = 0
    lds_conflicts: int = 0  # cycles beyond the first, over all accesses
    lines_64: int = 0
    waves_per_group: int = 1
    touched: list[Array] = field(default_factory=list)  # workgroup << 40 | line, since `settle`

    def touch(self, wave: Array, line: Array) -> None:
        """Notes the 64-byte lines that waves touch."""
        self.touched.append(np.unique(wave // self.waves_per_group << 40 | line))
        if len(self.touched) == _COMPACTED:
            self.touched = [np.unique(np.concatenate(self.touched))]

    def settle(self) -> None:
        """The workgroups of a batch have ended: counts their lines."""
        if self.touched:
            self.lines_64 += int(np.unique(np.concatenate(self.touched)).size)
            self.touched = []


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
            count = _distinct(keys)
            if bits == 6:
                traffic.segments_64 += count
                traffic.touch(keys >> 48, keys & ((1 << 48) - 1))
            else:
                traffic.segments_128 += count
    elif space.name == "LDS":
        traffic.lds_accesses += _distinct(wave)
        traffic.lds_conflicts += bank_conflicts(state.lanes, offsets, flat, shape.count)


def bank_conflicts(lanes: int, offsets: Array, flat: Array, count: int) -> int:
    """Cycles beyond the ideal: 32 banks of 4 bytes, 32 dwords a cycle, lanes in order.

    Lanes that want the same dword share it. An access of `count` dwords a lane goes in groups of
    32 / count lanes; what matters is the fullest bank of each group.
    """
    step = max(1, _BANKS // count)
    group = flat // lanes * -(-lanes // step) + flat % lanes // step
    group = group - group.min()
    words = (offsets >> 2)[:, None] + np.arange(count)
    keys = np.sort((group[:, None] << 32 | words).reshape(-1))
    fresh = np.ones(keys.size, bool)
    fresh[1:] = keys[1:] != keys[:-1]
    keys = keys[fresh]
    banks = (keys >> 32) * _BANKS + (keys & (_BANKS - 1))
    filled = np.bincount(banks, minlength=(int(group.max()) + 1) * _BANKS)
    fullest = filled.reshape(-1, _BANKS).max(1)
    return int(np.maximum(fullest - 1, 0).sum())


def _distinct(values: Array) -> int:
    """How many different values; fast when they are in order, as coalesced lanes' are."""
    step = np.diff(values)
    if step.size and int(step.min()) < 0:
        step = np.diff(np.sort(values))
    return int(1 + np.count_nonzero(step))
