"""LDS of every workgroup in a batch, with a shadow that knows who wrote and who read what."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pumice.emulator.decode import Instruction
from pumice.emulator.sanitizer import Watch
from pumice.emulator.spaces import Space, typed_views
from pumice.emulator.state import Array, State

_SEVERAL = np.uint32(63)  # in place of a wave's number: several waves read
_SIX = np.uint32(6)


class Lds(Space):
    """`size` bytes a workgroup.

    A shadow cell covers `granule` bytes and holds epoch·64 + wave + 1 of the last access; an epoch
    is the time between two barriers of a workgroup. Reads are put into the shadow only when a write
    in the same epoch could race with them: most never are.
    """

    name = "LDS"

    def __init__(
        self, state: State, watch: Watch | None, size: int, waves_per_group: int, granule: int
    ) -> None:
        super().__init__(state, watch)
        self.size = size
        self.stride = -(-max(size, 16) // 16) * 16
        groups = state.waves // waves_per_group
        self.data: Array = np.full(groups * self.stride, 0xFF, np.uint8)  # NaN, if it is read
        self.views = typed_views(self.data)
        group = np.repeat(np.arange(groups), waves_per_group)
        self.base: Array = np.repeat(group * self.stride, state.lanes)
        self.group_of_lane: Array = np.repeat(group, state.lanes)
        wave = np.tile(np.arange(1, waves_per_group + 1), groups)
        self.wave_of_lane: Array = np.repeat(wave, state.lanes).astype(np.uint32)
        self.epoch: Array = np.ones(groups, np.uint32)
        self.granule = granule
        self.watched = watch is not None and size > 0
        if self.watched:
            self.writer = np.zeros(groups * self.stride // granule, np.uint32)
            self.reader = np.zeros_like(self.writer)
        self._written = False  # in this epoch, by any workgroup
        self._pending: list[tuple[Array, Array, int, Array]] = []  # offsets, lanes, size, epochs
        self._verified: dict[int, Array] = {}  # instruction → offsets that were found good

    def reset(self) -> None:
        """A new set of workgroups: contents are undefined again."""
        self.data[...] = 0xFF
        self.epoch[...] = 1
        self._written = False
        self._pending.clear()
        self._verified.clear()
        if self.watched:
            self.writer[...] = 0
            self.reader[...] = 0

    def advance(self, ready: Array, everybody: bool) -> None:
        """A barrier let the workgroups `ready` go; everybody: all that are still alive."""
        self.epoch[ready] += 1
        if everybody:
            self._written = False
            self._pending.clear()

    def locate(
        self, inst: Instruction, addresses: Array, flat: Array, size: int
    ) -> tuple[Array, Array | None]:
        good = None
        if addresses.size and int(addresses.max()) + size > self.size:
            good = addresses + size <= self.size
            self.refuse(inst, flat[~good], addresses[~good], size)
        base = self.base if flat is self.state.every else self.base[flat]
        return addresses + base, good

    # -- the shadow -------------------------------------------------------------------------------

    def _cells(self, offsets: Array, size: int) -> Array:
        """[lanes, cells] that an access of `size` bytes touches."""
        return (offsets // self.granule)[:, None] + np.arange(max(1, size // self.granule))

    def _marks(self, flat: Array, epochs: Array) -> tuple[Array, Array]:
        """(epoch, mark) of lanes, each [lanes, 1]."""
        epoch = epochs[self.group_of_lane[flat]][:, None]
        return epoch, (epoch << _SIX) | self.wave_of_lane[flat][:, None]

    def _report(self, kind: str, inst: Instruction, flat: Array, offsets: Array, text: str) -> None:
        assert self.watch is not None

        def describe(at: int) -> str:
            address = int(offsets[at]) - int(self.base[flat[at]])
            return f"{text} at LDS address 0x{address:x}"

        self.watch.report(kind, inst, flat, describe)

    def note_read(self, inst: Instruction, offsets: Array, flat: Array, size: int) -> None:
        self._pending.append((offsets, flat, size, self.epoch.copy()))
        before = self._verified.get(inst.pc)
        if not self._written and before is not None and np.array_equal(before, offsets):
            return  # what was written stays written, and nobody wrote since the barrier
        cells = self._cells(offsets, size)
        epoch, me = self._marks(flat, self.epoch)
        wrote = self.writer[cells]
        never = (wrote == 0).any(1)
        if never.any():
            text = "read of bytes that nobody wrote"
            self._report("uninitialized-lds", inst, flat[never], offsets[never], text)
            return
        if self._written:
            raced = ((wrote >> _SIX == epoch) & (wrote != me)).any(1)
            if raced.any():
                text = "read of what another wave wrote, with no barrier between"
                self._report("race", inst, flat[raced], offsets[raced], text)
                return
        self._verified[inst.pc] = offsets

    def _mark_readers(self) -> None:
        for offsets, flat, size, epochs in self._pending:
            cells = self._cells(offsets, size)
            epoch, me = self._marks(flat, epochs)
            before = self.reader[cells]
            others = (before >> _SIX == epoch) & (before != me)
            self.reader[cells] = np.where(others, (epoch << _SIX) | _SEVERAL, me)
            now = self.reader[cells]  # waves that read one cell in the same instruction
            mixed = (now != me) & (now & _SEVERAL != _SEVERAL)
            if mixed.any():
                self.reader[cells[mixed]] = now[mixed] | _SEVERAL
        self._pending.clear()

    def note_write(
        self,
        inst: Instruction,
        offsets: Array,
        flat: Array,
        size: int,
        changed: Callable[[], Array] | None,
    ) -> None:
        cells = self._cells(offsets, size)
        epoch, me = self._marks(flat, self.epoch)
        if self._written or self._pending:
            self._mark_readers()
            wrote, read = self.writer[cells], self.reader[cells]
            other = (wrote >> _SIX == epoch) & (wrote != me)
            other |= (read >> _SIX == epoch) & (read != me)
            if other.any():
                raced = other.any(1)
                if changed is not None:
                    raced = raced & changed()  # the same value again harms nobody
                if raced.any():
                    text = "write over what another wave wrote or read, with no barrier between"
                    self._report("race", inst, flat[raced], offsets[raced], text)
        self.writer[cells] = me
        self._written = True

    def note_atomic(self, inst: Instruction, offsets: Array, flat: Array, size: int) -> None:
        cells = self._cells(offsets, size)
        # Written, but by no wave of this epoch: atomics race with nobody.
        self.writer[cells] = np.uint32(1)
