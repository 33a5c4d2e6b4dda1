"""Values that move between the lanes of a wave: DPP, SDWA, permutes, reads and writes of a lane.

Follows the "RDNA3 ISA", sections 7.6 (DPP) and 16.9, 16.12, and "CDNA3 ISA", sections 6.4 and 12.7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pumice.emulator.decode import Instruction
from pumice.emulator.operands import _NUMPY, Source, destination, source, vector_put
from pumice.emulator.state import EXEC, Array, State, Values
from pumice.errors import UnimplementedInstructionError

Step = Callable[[], None]


def dpp_lanes(inst: Instruction, lanes: int) -> tuple[Array, Array]:
    """(lane that each lane reads, whether there is one) of a DPP control word."""
    lane = np.arange(lanes)
    row, at = lane & ~15, lane & 15
    good = np.ones(lanes, bool)
    if "DPP8" in inst.encoding:
        picks = np.array([inst.get(f"lane_sel_{i}") for i in range(8)])
        return (lane & ~7) + picks[lane & 7], good
    control = inst.dpp
    amount = control & 15
    if control < 0x100:
        picks = np.array([control >> 2 * i & 3 for i in range(4)])
        return (lane & ~3) + picks[lane & 3], good
    if 0x101 <= control <= 0x10F:
        return row + np.minimum(at + amount, 15), at + amount <= 15
    if 0x111 <= control <= 0x11F:
        return row + np.maximum(at - amount, 0), at - amount >= 0
    if 0x121 <= control <= 0x12F:
        return row + (at - amount) % 16, good
    if control == 0x130:
        return np.minimum(lane + 1, lanes - 1), lane + 1 < lanes
    if control == 0x134:
        return (lane + 1) % lanes, good
    if control == 0x138:
        return np.maximum(lane - 1, 0), lane > 0
    if control == 0x13C:
        return (lane - 1) % lanes, good
    if control == 0x140:
        return row + 15 - at, good
    if control == 0x141:
        return (lane & ~7) + 7 - (lane & 7), good
    if control == 0x142:
        return np.maximum(row - 1, 0), row > 0
    if control == 0x143:
        return np.full(lanes, 31), lane >= 32
    if 0x150 <= control <= 0x15F:
        return row + amount, good
    if 0x160 <= control <= 0x16F:
        return row + (at ^ amount), good
    raise UnimplementedInstructionError(f"DPP control 0x{control:x}")


def dpp_source(
    state: State, inst: Instruction, kind: str, neg: int, absolute: int, high: int
) -> Source:
    """Source 0 as another lane's value; 0 where there is no such lane."""
    index, good = dpp_lanes(inst, state.lanes)
    code = inst.vsrc0
    half = kind in ("h", "u16", "i16")
    if half and not state.cdna and not inst.encoding.startswith("VOP3"):
        high, code = code >> 7 & 1, code & ~128
    plain = source(state, kind, code, high=high, neg=neg, absolute=absolute)
    fetch_inactive = bool(inst.get("fi"))
    missing = ~good
    any_missing = bool(missing.any())
    zero = np.zeros((), _NUMPY[kind])

    def get() -> Values:
        moved = plain.get()[:, index]
        if any_missing:
            moved[:, missing] = 0
        if not fetch_inactive:
            if state.dirty:
                state.refresh()
            if not state.full:
                moved = np.where(state.lanes_of(EXEC)[:, index], moved, zero)
        return moved

    return Source(None, get)


def dpp_keeps(state: State, inst: Instruction) -> Callable[[], Array] | None:
    """Which lanes a DPP operation may write, None when all may."""
    if "DPP8" in inst.encoding:
        return None
    index, good = dpp_lanes(inst, state.lanes)
    lane = np.arange(state.lanes)
    rows, banks = inst.row_mask, inst.bank_mask
    chosen = (rows >> (lane >> 4 & 3) & 1 == 1) & (banks >> (lane >> 2 & 3) & 1 == 1)
    if inst.bc:
        if chosen.all():
            return None
        return lambda: chosen
    chosen = chosen & good
    if inst.get("fi"):
        return None if chosen.all() else lambda: chosen
    return lambda: chosen & state.lanes_of(EXEC)[:, index]


def _select(value: Values, choice: int, signed: int) -> Values:
    if choice == 6:
        return value
    bits = 8 if choice < 4 else 16
    shift = np.uint32(8 * choice if choice < 4 else 16 * (choice - 4))
    part = value >> shift & np.uint32((1 << bits) - 1)
    if signed:
        return part.astype(np.int8 if bits == 8 else np.int16).astype(np.int32).view(np.uint32)
    return part


def sdwa_source(state: State, inst: Instruction, kind: str, which: int) -> Source:
    """A byte, word or all of a source (CDNA's SDWA)."""
    code = inst.vsrc0 if which == 0 else inst.vsrc1
    if inst.get(f"s{which}"):
        code -= 256
    plain = source(state, "u32", code)
    choice, signed = inst.get(f"src{which}_sel", 6), inst.get(f"src{which}_sext")
    neg, absolute = inst.get(f"src{which}_neg"), inst.get(f"src{which}_abs")

    def get() -> Values:
        bits = _select(plain.get(), choice, signed)
        if kind == "h":
            value = bits.astype(np.uint16).view(np.float16).astype(np.float32)
        elif kind in ("u16", "i16"):
            return bits.astype(np.uint16).view(_NUMPY[kind])
        else:
            value = np.ascontiguousarray(bits).view(_NUMPY[kind])
        if absolute:
            value = np.abs(value)
        return np.negative(value) if neg else value

    return Source(None, get)


def sdwa_put(state: State, inst: Instruction, kind: str) -> Callable[[Any], None]:
    """Writes a byte, word or all of a register; the rest is cleared, extended or kept."""
    index = destination(inst.vdst)
    choice, unused = inst.get("dst_sel", 6), inst.get("dst_unused")
    write = vector_put(state, "u32", index)
    old = state.row("u32", index)
    bits = 8 if choice < 4 else 16
    shift = 0 if choice == 6 else 8 * choice if choice < 4 else 16 * (choice - 4)
    field = (1 << bits) - 1

    def put(value: Any) -> None:
        if kind == "h":
            raw = np.asarray(value).astype(np.float16).view(np.uint16).astype(np.uint32)
        elif kind in ("u16", "i16"):
            raw = np.asarray(value).astype(_NUMPY[kind]).view(np.uint16).astype(np.uint32)
        else:
            raw = np.asarray(value, _NUMPY[kind]).view(np.uint32)
        if choice == 6:
            write(raw)
            return
        part = (raw & np.uint32(field)) << np.uint32(shift)
        if unused == 2:
            part = part | old & np.uint32(~(field << shift) & 0xFFFFFFFF)
        elif unused == 1:
            signed = raw.astype(np.int8 if bits == 8 else np.int16).astype(np.int32)
            part = part | signed.view(np.uint32) << np.uint32(shift)
        write(part)

    return put


def _scalar_lane(state: State, code: int, literal: int) -> Callable[[], Array]:
    got = source(state, "u32", code, literal)
    last = np.uint32(state.lanes - 1)
    return lambda: np.broadcast_to(got.get() & last, (state.waves, 1)).astype(np.intp)


def _readlane(state: State, inst: Instruction) -> Step:
    row = state.row("u32", inst.src0 - 256)
    lane = _scalar_lane(state, inst.src1, inst.get("literal"))
    to = inst.vdst if inst.vdst < 256 else inst.vdst - 256  # CDNA's table calls it a vector
    return lambda: state.put_scalar(to, np.take_along_axis(row, lane(), 1))


def _readfirstlane(state: State, inst: Instruction) -> Step:
    value = source(state, "u32", inst.src0)
    to = inst.vdst if inst.vdst < 256 else inst.vdst - 256
    shape = (state.waves, state.lanes)

    def run() -> None:
        first = state.lanes_of(EXEC).argmax(1)[:, None]  # lane 0 when none is set
        state.put_scalar(to, np.take_along_axis(np.broadcast_to(value.get(), shape), first, 1))

    return run


def _writelane(state: State, inst: Instruction) -> Step:
    value = source(state, "u32", inst.src0, inst.get("literal"))
    lane = _scalar_lane(state, inst.src1, inst.get("literal"))
    row = state.row("u32", inst.vdst - 256)
    wave = np.arange(state.waves)

    def run() -> None:
        chosen = wave if state.all_active else np.flatnonzero(state.active)
        new = np.broadcast_to(value.get(), (state.waves, 1))
        row[chosen, lane()[chosen, 0]] = new[chosen, 0]

    return run


def _permlane16(state: State, inst: Instruction) -> Step:
    """v_permlane16 and v_permlanex16: an index of 4 bits a lane, from two scalars or a vector."""
    var = "_var" in inst.name
    cross = "permlanex16" in inst.name
    row = state.row("u32", inst.src0 - 256)
    lane = np.arange(state.lanes)
    base = (lane & ~15) ^ 16 if cross else lane & ~15
    put = vector_put(state, "u32", inst.vdst - 256)
    fetch_inactive = inst.get("opsel") & 1
    bound_control = inst.get("opsel") & 2
    first = source(state, "u32", inst.src1, inst.get("literal"))
    second = None if var else source(state, "u32", inst.src2, inst.get("literal"))
    shift = (4 * (lane & 7)).astype(np.uint32)

    def run() -> None:
        if second is None:
            pick = first.get() & np.uint32(15)
        else:
            low, high = np.atleast_2d(first.get()), np.atleast_2d(second.get())
            pick = np.where((lane & 15) < 8, low >> shift, high >> shift) & np.uint32(15)
        index = np.broadcast_to(base + pick.astype(np.intp), row.shape)
        moved = np.take_along_axis(row, index, 1)
        if not fetch_inactive:
            there = np.take_along_axis(state.lanes_of(EXEC), index, 1)
            moved = np.where(there, moved, np.uint32(0) if bound_control else state.v[own])
        put(moved)

    own = inst.vdst - 256
    return run


def _permlane64(state: State, inst: Instruction) -> Step:
    if state.lanes == 32:
        return lambda: None
    row = state.row("u32", inst.src0 - 256)
    put = vector_put(state, "u32", inst.vdst - 256)
    index = np.arange(64) ^ 32
    return lambda: put(row[:, index])


def _permlane_swap(state: State, inst: Instruction) -> Step:
    """gfx950: rows (16 or 32 lanes) of odd place in vdst change places with even ones of src0."""
    size = 16 if "16" in inst.name else 32
    a, b = state.row("u32", inst.vdst - 256), state.row("u32", inst.src0 - 256)
    lane = np.arange(state.lanes)
    odd = (lane // size) % 2 == 1
    put_a = vector_put(state, "u32", inst.vdst - 256)
    put_b = vector_put(state, "u32", inst.src0 - 256)
    other = lane ^ size

    def run() -> None:
        new_a, new_b = np.where(odd, b[:, other], a), np.where(odd, b, a[:, other])
        put_a(new_a)
        put_b(new_b)

    return run


def _swap(state: State, inst: Instruction) -> Step:
    a, b = inst.vdst - 256, inst.src0 - 256
    put_a, put_b = vector_put(state, "u32", a), vector_put(state, "u32", b)

    def run() -> None:
        old = state.v[a].copy()
        put_a(state.v[b])
        put_b(old)

    return run


def _mbcnt(state: State, inst: Instruction) -> Step:
    """Bits of the mask below this lane, plus source 1; `hi` looks at lanes 32 to 63."""
    mask = source(state, "u32", inst.src0, inst.get("literal"))
    add = source(state, "u32", inst.src1, inst.get("literal"))
    lane = np.arange(state.lanes)
    below = np.clip(lane - 32, 0, 32) if "_hi" in inst.name else np.minimum(lane, 32)
    chosen = np.array([(1 << int(n)) - 1 for n in below], np.uint32)
    put = vector_put(state, "u32", inst.vdst - 256)

    def run() -> None:
        put(np.bitwise_count(mask.get() & chosen).astype(np.uint32) + add.get())

    return run


def bpermute(state: State, inst: Instruction) -> Step:
    """ds_bpermute_b32: each lane reads the lane that its address names; 0 from an idle lane."""
    address, data = state.row("u32", inst.addr - 256), state.row("u32", inst.data0 - 256)
    offset = np.uint32(inst.offset0 | inst.offset1 << 8)
    put = vector_put(state, "u32", inst.vdst - 256)
    last = np.uint32(state.lanes - 1)
    fetch_inactive = "_fi_" in inst.name

    def run() -> None:
        index = ((address + offset) >> np.uint32(2) & last).astype(np.intp)
        moved = np.take_along_axis(data, index, 1)
        if not fetch_inactive:
            moved = np.where(np.take_along_axis(state.lanes_of(EXEC), index, 1), moved, 0)
        put(moved)

    return run


def permute(state: State, inst: Instruction) -> Step:
    """ds_permute_b32: each lane writes to the lane that its address names."""
    address, data = state.row("u32", inst.addr - 256), state.row("u32", inst.data0 - 256)
    offset = np.uint32(inst.offset0 | inst.offset1 << 8)
    put = vector_put(state, "u32", inst.vdst - 256)
    last = np.uint32(state.lanes - 1)

    def run() -> None:
        index = ((address + offset) >> np.uint32(2) & last).astype(np.intp)
        wave, lane = np.nonzero(state.lanes_of(EXEC))
        moved = np.zeros_like(data)
        moved[wave, index[wave, lane]] = data[wave, lane]
        put(moved)

    return run


def swizzle(state: State, inst: Instruction) -> Step:
    """ds_swizzle_b32: a fixed pattern within 4 or 32 lanes."""
    pattern = inst.offset0 | inst.offset1 << 8
    lane = np.arange(state.lanes)
    if pattern >= 0xE000:
        raise UnimplementedInstructionError(f"the FFT pattern 0x{pattern:x} of ds_swizzle_b32")
    if pattern >= 0xC000:
        amount, mask = pattern >> 5 & 31, pattern & 31
        if pattern >> 10 & 1:
            amount = -amount
        index = (lane & 32) | (lane & mask) | ((lane + amount) & 31 & ~mask)
    elif pattern & 0x8000:
        picks = np.array([pattern >> 2 * i & 3 for i in range(4)])
        index = (lane & ~3) + picks[lane & 3]
    else:
        keep, either, flip = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
        index = (lane & 32) | (((lane & 31 & keep) | either) ^ flip)
    data = state.row("u32", inst.addr - 256)
    put = vector_put(state, "u32", inst.vdst - 256)
    return lambda: put(np.where(state.lanes_of(EXEC)[:, index], data[:, index], np.uint32(0)))


LANES: dict[str, Callable[[State, Instruction], Step]] = {
    "v_readlane_b32": _readlane,
    "v_readfirstlane_b32": _readfirstlane,
    "v_writelane_b32": _writelane,
    "v_permlane16_b32": _permlane16,
    "v_permlanex16_b32": _permlane16,
    "v_permlane16_var_b32": _permlane16,
    "v_permlanex16_var_b32": _permlane16,
    "v_permlane64_b32": _permlane64,
    "v_permlane16_swap_b32": _permlane_swap,
    "v_permlane32_swap_b32": _permlane_swap,
    "v_swap_b32": _swap,
    "v_mbcnt_lo_u32_b32": _mbcnt,
    "v_mbcnt_hi_u32_b32": _mbcnt,
    "ds_bpermute_b32": bpermute,
    "ds_bpermute_fi_b32": bpermute,
    "ds_permute_b32": permute,
    "ds_swizzle_b32": swizzle,
}
