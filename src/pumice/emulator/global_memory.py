"""Scalar loads, and global, flat, scratch and buffer instructions.

Follows the "RDNA3 ISA", sections 8 (scalar memory) and 11 (vector memory), "RDNA4 ISA", sections 8
and 10, and "CDNA3 ISA", sections 8 and 9.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pumice.emulator.access import chosen_lanes, load, store
from pumice.emulator.atomics import atomic
from pumice.emulator.decode import Instruction
from pumice.emulator.lds import Lds
from pumice.emulator.memory import BASE, PRIVATE_APERTURE, SHARED_APERTURE
from pumice.emulator.operands import pair_getter, source
from pumice.emulator.spaces import Global, Private, Space
from pumice.emulator.state import ACC, M0_CDNA, M0_RDNA, Array, State
from pumice.emulator.traffic import Shape, Traffic, shape_of
from pumice.errors import UnimplementedInstructionError

Step = Callable[[], None]
Mover = Callable[[Array, Array], None]
_NO_REGISTER = (124, 125)  # NULL, or M0 where an encoding means "off"


class VectorMemory:
    """Binds the memory instructions of one batch."""

    def __init__(
        self, state: State, memory: Global, lds: Lds, private: Private, traffic: Traffic
    ) -> None:
        self.state = state
        self.memory = memory
        self.lds = lds
        self.private = private
        self.traffic = traffic

    # -- scalar -----------------------------------------------------------------------------------

    def scalar_load(self, inst: Instruction) -> Step:
        """s_load, s_buffer_load of dwords (or bytes and words on RDNA4) for every wave."""
        state, space = self.state, self.memory
        kind = inst.name.rsplit("_", 1)[1]
        shape = shape_of(kind)
        base = inst.sbase
        signed_bits = 24 if state.isa == "rdna4" else 21
        raw = inst.get("ioffset", inst.get("offset"))
        buffer = "buffer" in inst.name
        constant = raw - (1 << signed_bits) if raw >> (signed_bits - 1) & 1 else raw
        offset_code = inst.get("soffset", 124)
        uses_offset = bool(inst.get("soffset_en")) if state.cdna else offset_code not in (124,)
        if state.cdna and not inst.get("imm"):
            constant = 0
            if not uses_offset:  # the offset field holds a register's number
                uses_offset, offset_code = True, raw & 127
        extra = source(state, "u32", offset_code) if uses_offset else None
        pointer = state.s64[:, base // 2]
        records = state.s[:, base + 2]
        first = inst.sdata
        wave = np.arange(state.waves)
        plain = not buffer and extra is None and shape.size == 4

        def run() -> None:
            if plain and state.all_active and (pointer == pointer[0]).all():
                address = int(pointer[0]) + constant & ~3
                span = space.memory.span(address)
                if span is not None and address + shape.bytes <= span[1]:
                    at = (address - BASE) >> 2
                    state.s[:, first : first + shape.count] = space.views[4][at : at + shape.count]
                    self.traffic.bytes_read["scalar"] = (
                        self.traffic.bytes_read.get("scalar", 0) + state.waves * shape.bytes
                    )
                    if first + shape.count > 126:
                        state.dirty = True
                    return
            each()

        def each() -> None:
            address = pointer.astype(np.int64)
            if buffer:
                address = address & 0xFFFF_FFFF_FFFF
            offset = np.full(state.waves, constant, np.int64)
            if extra is not None:
                offset = offset + np.broadcast_to(extra.get(), (state.waves, 1))[:, 0]
            chosen = wave if state.all_active else np.flatnonzero(state.active)
            target = address[chosen] + offset[chosen]
            if shape.size == 4:
                target = target & ~3
            if buffer:
                inside = offset[chosen] + shape.bytes <= records[chosen]
                if not inside.all():
                    state.s[chosen[~inside], first : first + shape.count] = 0
                    chosen, target = chosen[inside], target[inside]
            offsets, good = space.locate(inst, target, chosen * state.lanes, shape.bytes)
            if good is not None:
                state.s[chosen[~good], first : first + shape.count] = 0
                chosen, offsets = chosen[good], offsets[good]
            self.traffic.bytes_read["scalar"] = (
                self.traffic.bytes_read.get("scalar", 0) + chosen.size * shape.bytes
            )
            if shape.size == 4:
                index = (offsets >> 2)[:, None] + np.arange(shape.count)
                value = space.views[4][index]
            else:
                value = space.views[1][offsets[:, None]].astype(np.uint32)
                if shape.size == 2:
                    value |= space.views[1][offsets[:, None] + 1].astype(np.uint32) << np.uint32(8)
                if shape.signed:
                    narrow = np.int8 if shape.size == 1 else np.int16
                    value = value.astype(narrow).astype(np.int32).view(np.uint32)
            state.s[chosen, first : first + shape.count] = value
            if first + shape.count > 126:
                state.dirty = True

        return run

    # -- vector -----------------------------------------------------------------------------------

    def mover(self, inst: Instruction, name: str, space: Space, data: int, to: int) -> Mover:
        """The load, store or atomic that `name` (without its space) means."""
        state, traffic = self.state, self.traffic
        if name.startswith("load_"):
            return load(state, inst, space, shape_of(name[5:]), to, traffic)
        if name.startswith("store_"):
            return store(state, inst, space, shape_of(name[6:]), data, traffic)
        if name.startswith("atomic_"):
            operation = name[7:]
            returns = inst.get("glc") or inst.get("sc0") or inst.get("th") & 1
            wide = 2 if operation.endswith("64") else 1
            compare = data + wide if operation.startswith("cmpswap") else None
            return atomic(
                state, inst, space, operation, data, to if returns else None, traffic, compare
            )
        raise UnimplementedInstructionError("a kind of memory instruction")

    def _signed_offset(self, inst: Instruction) -> int:
        raw = inst.get("ioffset", inst.get("offset"))
        bits = 24 if self.state.isa == "rdna4" else 13
        if self.state.cdna and inst.encoding == "FLAT":
            return raw  # unsigned, 12 bits
        return raw - (1 << bits) if raw >> (bits - 1) & 1 else raw

    def _registers(self, inst: Instruction) -> tuple[int, int, int]:
        """(address, data, destination) rows."""
        f = inst.fields
        shift = ACC if self.state.cdna and inst.get("acc") else 0
        address = f.get("vaddr", f.get("addr", 256)) - 256
        data = f.get("vsrc", f.get("data", 256)) - 256 + shift
        return address, data, f.get("vdst", 256) - 256 + shift

    def _has_saddr(self, inst: Instruction) -> bool:
        code = inst.get("saddr", 124)
        return code != (127 if self.state.cdna else 124) and code != 0x7F

    def global_(self, inst: Instruction) -> Step:
        """global_load, global_store, global_atomic."""
        state = self.state
        name = inst.name.removeprefix("global_")
        if name.startswith(("load_tr", "load_block", "store_block")) or "addtid" in name:
            raise UnimplementedInstructionError("this kind of global memory instruction")
        address, data, to = self._registers(inst)
        constant = self._signed_offset(inst)
        if name.startswith("load_lds_"):
            move = self._load_to_lds(inst, shape_of(name[9:]), constant)
        else:
            move = self.mover(inst, name, self.memory, data, to)
        if self._has_saddr(inst):
            base = state.column("i64", inst.saddr)
            row = state.row("u32", address)

            def scalar_based() -> None:
                flat = chosen_lanes(state)
                if flat is not None:
                    where = row + (base + constant)
                    move(where.reshape(-1)[flat], flat)

            return scalar_based
        get = pair_getter(state, address)

        def run() -> None:
            flat = chosen_lanes(state)
            if flat is not None:
                where = get().view(np.int64).reshape(-1)[flat]
                move(where + constant if constant else where, flat)

        return run

    def _load_to_lds(self, inst: Instruction, shape: Shape, constant: int) -> Mover:
        """global_load_lds: lane i's words go to LDS at M0 + offset + i times their size; bytes and
        halves are extended to a word."""
        state = self.state
        between = [np.zeros(state.waves * state.lanes, np.uint32) for _ in range(shape.count)]
        words = Shape(4, shape.count)
        fetch = load(state, inst, self.memory, shape, 0, self.traffic, between)
        put = store(state, inst, self.lds, words, 0, self.traffic, between)
        m0 = state.s[:, M0_CDNA if state.cdna else M0_RDNA]
        lane = np.arange(state.waves * state.lanes)
        steps = lane % state.lanes * words.bytes + constant

        def move(where: Array, flat: Array) -> None:
            fetch(where, flat)
            put((m0[flat // state.lanes] & 0xFFFF).astype(np.int64) + steps[flat], flat)

        return move

    def flat(self, inst: Instruction) -> Step:
        """flat_*: the address says whether it is global memory, LDS or scratch."""
        state = self.state
        name = inst.name.removeprefix("flat_")
        address, data, to = self._registers(inst)
        spaces = (self.memory, self.lds, self.private)
        moves = [self.mover(inst, name, space, data, to) for space in spaces]
        constant = self._signed_offset(inst)
        get = pair_getter(state, address)
        shared, private = SHARED_APERTURE >> 32, PRIVATE_APERTURE >> 32

        def run() -> None:
            flat = chosen_lanes(state)
            if flat is None:
                return
            where = get().view(np.int64).reshape(-1)[flat] + constant
            top = where >> 32
            kinds = (top == shared) * 1 + (top == private) * 2
            for kind, move in enumerate(moves):
                mine = kinds == kind
                if mine.any():
                    low = where[mine] if kind == 0 else where[mine] & 0xFFFF_FFFF
                    move(low, flat[mine])

        return run

    def scratch(self, inst: Instruction) -> Step:
        """scratch_*: an offset into the lane's own memory."""
        state = self.state
        address, data, to = self._registers(inst)
        name = inst.name.removeprefix("scratch_")
        move = self.mover(inst, name, self.private, data, to)
        constant = self._signed_offset(inst)
        row = state.row("u32", address) if inst.get("sve") else None
        base = state.column("u32", inst.saddr) if self._has_saddr(inst) else None
        shape = (state.waves, state.lanes)

        def run() -> None:
            flat = chosen_lanes(state)
            if flat is None:
                return
            where = np.full(shape, constant, np.int64)
            if row is not None:
                where += row
            if base is not None:
                where += base.astype(np.int32)
            move(where.reshape(-1)[flat], flat)

        return run

    def buffer(self, inst: Instruction) -> Step:
        """buffer_*: base, stride and size come from four scalar registers.

        Lanes beyond the buffer's size read 0 and write nothing: that is how masks are made, and no
        fault. What lies within the size is checked like any global access.
        """
        state = self.state
        name = inst.name.removeprefix("buffer_")
        if "lds" in name or "format" in name or inst.get("lds"):
            raise UnimplementedInstructionError("this kind of buffer instruction")
        f = inst.fields
        shift = ACC if state.cdna and inst.get("acc") else 0
        data = f["vdata"] - 256 + shift
        resource = f["srsrc"]
        move = self.mover(inst, name, self.memory, data, data)
        private_move = self.mover(inst, name, self.private, data, data)
        size = _size(name)
        scalar_offset = source(state, "u32", f["soffset"])
        constant = f["offset"]
        if state.isa == "rdna4" and constant >> 23:
            constant -= 1 << 24
        rows = [state.row("u32", f["vaddr"] - 256 + i) for i in range(2)]
        index_row = rows[0] if inst.idxen else None
        offset_row = rows[1 if inst.idxen else 0] if inst.offen else None
        columns = state.s[:, resource : resource + 4]
        writes = not name.startswith("load_")
        loaded = shape_of(name[5:]) if not writes else None

        def run() -> None:
            flat = chosen_lanes(state)
            if flat is None:
                return
            words = columns.astype(np.int64)
            base = (words[:, 0] | (words[:, 1] & 0xFFFF) << 32)[:, None]
            stride = (words[:, 1] >> 16 & 0x3FFF)[:, None]
            records = words[:, 2][:, None]
            offset = np.full((state.waves, state.lanes), constant, np.int64)
            if offset_row is not None:
                offset += offset_row
            moved = np.broadcast_to(scalar_offset.get(), (state.waves, 1)).astype(np.int64)
            if int(base[0, 0]) == PRIVATE_APERTURE:
                private_move((offset + moved).reshape(-1)[flat], flat)
                return
            if index_row is not None:
                index = index_row.astype(np.int64)
                inside = np.where(stride == 0, offset + size <= records, index < records)
                where = base + moved + offset + index * stride
            else:
                inside = offset + size <= records
                where = base + moved + offset
            inside_flat = np.broadcast_to(inside, offset.shape).reshape(-1)[flat]
            where_flat = where.reshape(-1)[flat]
            if inside_flat.all():
                move(where_flat, flat)
                return
            if loaded is not None:
                out = flat[~inside_flat]
                if loaded.half is None:
                    for i in range(loaded.count):
                        state.v[data + i].reshape(-1)[out] = 0
                else:
                    state.half("u16", data, loaded.half)[out // state.lanes, out % state.lanes] = 0
            if inside_flat.any():
                move(where_flat[inside_flat], flat[inside_flat])

        return run


def _size(name: str) -> int:
    kind, _, rest = name.partition("_")
    if kind == "atomic":
        return 8 if rest.endswith("64") else 4
    return shape_of(rest).bytes
