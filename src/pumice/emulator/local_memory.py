"""DS instructions: loads, stores and atomics of LDS, and gfx950's transposing loads.

Follows the "RDNA3 ISA", section 12, and the "CDNA4 ISA", section 11.4 (transpose).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from pumice.emulator.access import chosen_lanes, load, store
from pumice.emulator.atomics import atomic
from pumice.emulator.decode import Instruction
from pumice.emulator.lanes import LANES
from pumice.emulator.lds import Lds
from pumice.emulator.state import ACC, Array, State
from pumice.emulator.traffic import Shape, Traffic, shape_of
from pumice.errors import UnimplementedInstructionError

Step = Callable[[], None]
_PLAIN = re.compile(r"ds_(load|store)_((?:[biu]\d+)(?:_d16(?:_hi)?)?)$")
_TWO = re.compile(r"ds_(load|store)_2addr(_stride64)?_b(32|64)$")
_TRANSPOSE = re.compile(r"ds_load_b(64|96)_tr_b(4|6|8|16)$")


def bind_local(state: State, inst: Instruction, lds: Lds, traffic: Traffic) -> Step:
    """A closure for any ds_* instruction."""
    moved = LANES.get(inst.name)
    if moved is not None:
        return moved(state, inst)
    if inst.name in ("ds_nop",):
        return lambda: None
    if inst.get("gds"):
        raise UnimplementedInstructionError("global data share")
    if _PLAIN.match(inst.name):
        return _plain(state, inst, lds, traffic)
    if _TWO.match(inst.name):
        return _two(state, inst, lds, traffic)
    if _TRANSPOSE.match(inst.name):
        return _transposed(state, inst, lds)
    if "addtid" in inst.name:
        raise UnimplementedInstructionError("an LDS address from the thread's number")
    return _atomic(state, inst, lds, traffic)


def _rows(state: State, inst: Instruction) -> tuple[int, int, int, int]:
    """(address, data0, data1, destination) rows; CDNA's acc bit means accumulation registers."""
    shift = ACC if state.cdna and inst.get("acc") else 0
    return (
        inst.addr - 256,
        inst.data0 - 256 + shift,
        inst.data1 - 256 + shift,
        inst.vdst - 256 + shift,
    )


def _plain(state: State, inst: Instruction, lds: Lds, traffic: Traffic) -> Step:
    found = _PLAIN.match(inst.name)
    assert found
    way, kind = found.groups()
    address, data, _, to = _rows(state, inst)
    row = state.row("u32", address).reshape(-1)
    offset = inst.offset0 | inst.offset1 << 8
    parts = kind.split("_", 1)
    shape = shape_of(f"{parts[1]}_{parts[0]}" if len(parts) > 1 else kind)
    if way == "load":
        move = load(state, inst, lds, shape, to, traffic)
    else:
        move = store(state, inst, lds, shape, data, traffic)

    def run() -> None:
        flat = chosen_lanes(state)
        if flat is not None:
            move(_sum(row if flat is state.every else row[flat], offset), flat)

    return run


def _sum(base: Array, offset: int) -> Array:
    """Addresses in 32 bits: a negative base with an offset beyond it is a place in LDS."""
    found: Array = (base + np.uint32(offset)).astype(np.int64)
    return found


def _two(state: State, inst: Instruction, lds: Lds, traffic: Traffic) -> Step:
    found = _TWO.match(inst.name)
    assert found
    way, stride, bits = found.groups()
    address, data0, data1, to = _rows(state, inst)
    row = state.row("u32", address).reshape(-1)
    count = int(bits) // 32
    unit = 4 * count * (64 if stride else 1)
    first, second = inst.offset0 * unit, inst.offset1 * unit
    shape = Shape(4, count)
    if way == "load":
        moves = [load(state, inst, lds, shape, r, traffic) for r in (to, to + count)]
    else:
        moves = [store(state, inst, lds, shape, r, traffic) for r in (data0, data1)]

    def run() -> None:
        flat = chosen_lanes(state)
        if flat is not None:
            base = row[flat]  # a copy: the first load may overwrite the address
            moves[0](_sum(base, first), flat)
            moves[1](_sum(base, second), flat)

    return run


def _atomic(state: State, inst: Instruction, lds: Lds, traffic: Traffic) -> Step:
    name = inst.name.removeprefix("ds_")
    returns = "_rtn" in name
    operation = name.replace("_rtn", "")
    address, data0, data1, to = _rows(state, inst)
    compare = None
    if operation.startswith("cmpst_"):  # before RDNA3: data0 is compared with, data1 is the new
        operation = operation.replace("cmpst_", "cmpswap_")
        data0, compare = data1, data0
    elif operation.startswith("cmpstore_"):
        operation = operation.replace("cmpstore_", "cmpswap_")
        compare = data1
    elif operation.startswith("storexchg_b"):
        operation = operation.replace("storexchg_", "swap_")
    move = atomic(state, inst, lds, operation, data0, to if returns else None, traffic, compare)
    row = state.row("u32", address).reshape(-1)
    offset = inst.offset0 | inst.offset1 << 8

    def run() -> None:
        flat = chosen_lanes(state)
        if flat is not None:
            move(_sum(row if flat is state.every else row[flat], offset), flat)

    return run


def _transposed(state: State, inst: Instruction, lds: Lds) -> Step:
    """gfx950: 16 lanes read 8 bytes each and exchange them as a transposed matrix.

    With b16 the 16 lanes hold 16 rows of 4; lane i receives elements of column i % 4 of the rows of
    its group of four: the block of 16 × 4 words becomes 4 × 16.
    """
    found = _TRANSPOSE.match(inst.name)
    assert found
    total, element = int(found.group(1)), int(found.group(2))
    if total != 64 or element not in (8, 16):
        raise UnimplementedInstructionError("a transposing load of this element size")
    address, _, _, to = _rows(state, inst)
    row = state.row("u32", address).reshape(-1)
    offset = inst.offset0 | inst.offset1 << 8
    width = element // 8

    def run() -> None:
        flat = chosen_lanes(state)
        if flat is None:
            return
        offsets, good = lds.locate(inst, _sum(row[flat], offset), flat, 8)
        if good is not None:
            offsets, flat = offsets[good], flat[good]
        if lds.watched:
            lds.note_read(inst, offsets, flat, 8)
        data = np.zeros((state.every.size, 8), np.uint8)  # [lanes, bytes]; 0 from an idle lane
        data[flat] = lds.views[1][offsets[:, None] + np.arange(8)]
        per = 8 // width
        block = data.reshape(-1, 16, per, width)  # [groups, row, column, bytes]
        # The 16·per elements in memory order are read as [16 // per ... ] by columns.
        turned = block.reshape(-1, per, 16 // per, per, width).transpose(0, 2, 3, 1, 4)
        words = np.ascontiguousarray(turned).reshape(-1, 8).view(np.uint32)
        state.v[to].reshape(-1)[flat] = words[flat, 0]
        state.v[to + 1].reshape(-1)[flat] = words[flat, 1]

    return run
