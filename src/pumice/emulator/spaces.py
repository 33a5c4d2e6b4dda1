"""Address spaces of a batch: LDS of every workgroup, private memory of every lane, global memory.

A space turns lanes' addresses into byte offsets of its backing array and says which are allowed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.emulator.decode import Instruction
from pumice.emulator.memory import BASE, Memory
from pumice.emulator.sanitizer import Watch
from pumice.emulator.state import Array, State
from pumice.errors import KernelFaultError

_TYPES: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def typed_views(data: Array) -> dict[int, Array]:
    return {size: data.view(kind) for size, kind in _TYPES.items()}


class Space:
    """Views of the bytes by element size, and the check of an access."""

    name = "memory"
    views: dict[int, Array]

    def __init__(self, state: State, watch: Watch | None) -> None:
        self.state = state
        self.watch = watch

    def refuse(self, inst: Instruction, flat: Array, addresses: Array, size: int) -> None:
        """Report lanes whose access is out of bounds; without a sanitizer, raise."""

        def describe(at: int) -> str:
            return f"{size} bytes at {self.name} address 0x{int(addresses[at]):x}"

        if self.watch is not None:
            self.watch.report("out-of-bounds", inst, flat, describe)
            return
        raise KernelFaultError(
            f"out of bounds: {describe(0)}, {inst}, {flat.size} lanes, the first is lane "
            f"{int(flat[0]) % self.state.lanes} of wave {int(flat[0]) // self.state.lanes}",
            hint="Launch with sanitize=True for the source line and workgroup.",
        )

    def locate(
        self, inst: Instruction, addresses: Array, flat: Array, size: int
    ) -> tuple[Array, Array | None]:
        """(byte offsets, which lanes are allowed or None for all) of int64 addresses."""
        raise NotImplementedError

    def note_read(self, inst: Instruction, offsets: Array, flat: Array, size: int) -> None:
        """Told of every read that is allowed."""

    def note_write(
        self, inst: Instruction, offsets: Array, flat: Array, size: int, changed: Array | None
    ) -> None:
        """Told of every write before it happens; `changed` says which lanes change a value."""

    def note_atomic(self, inst: Instruction, offsets: Array, flat: Array, size: int) -> None:
        """Told of every atomic, which races with nobody."""

    watched = False


class Global(Space):
    """Device memory."""

    name = "global"

    def __init__(self, state: State, watch: Watch | None, memory: Memory) -> None:
        super().__init__(state, watch)
        self.memory = memory
        self.views = memory.views

    def locate(
        self, inst: Instruction, addresses: Array, flat: Array, size: int
    ) -> tuple[Array, Array | None]:
        good = self.memory.valid(addresses, size)
        if good is not None:
            self.refuse(inst, flat[~good], addresses[~good], size)
        return addresses - BASE, good


class Private(Space):
    """Scratch: `size` bytes a lane; the address is the lane's own offset."""

    name = "scratch"

    def __init__(self, state: State, watch: Watch | None, size: int) -> None:
        super().__init__(state, watch)
        self.size = size
        self.stride = -(-max(size, 8) // 8) * 8
        self.views = typed_views(np.zeros(state.waves * state.lanes * self.stride, np.uint8))

    def locate(
        self, inst: Instruction, addresses: Array, flat: Array, size: int
    ) -> tuple[Array, Array | None]:
        good = None
        if addresses.size and (int(addresses.min()) < 0 or int(addresses.max()) + size > self.size):
            good = (addresses >= 0) & (addresses + size <= self.size)
            self.refuse(inst, flat[~good], addresses[~good], size)
        return flat * self.stride + addresses, good


class Lds(Space):
    """LDS of every workgroup in the batch, with a shadow that knows who wrote and who read.

    A shadow cell covers `granule` bytes and holds epoch·64 + wave + 1 of the last access; an epoch
    is the time between two barriers of a workgroup. 63 in place of a wave: several waves read.
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

    def reset(self) -> None:
        """A new set of workgroups: contents are undefined again."""
        self.data[...] = 0xFF
        self.epoch[...] = 1
        if self.watched:
            self.writer[...] = 0
            self.reader[...] = 0

    def locate(
        self, inst: Instruction, addresses: Array, flat: Array, size: int
    ) -> tuple[Array, Array | None]:
        good = None
        if addresses.size and int(addresses.max()) + size > self.size:
            good = addresses + size <= self.size
            self.refuse(inst, flat[~good], addresses[~good], size)
        return addresses + self.base[flat], good

    def _cells(self, offsets: Array, flat: Array, size: int) -> tuple[Array, Array, Array]:
        count = max(1, size // self.granule)
        cells = (offsets // self.granule)[:, None] + np.arange(count)
        epoch = self.epoch[self.group_of_lane[flat]][:, None]
        me = (epoch << np.uint32(6)) | self.wave_of_lane[flat][:, None]
        return cells, epoch, me

    def _report(self, kind: str, inst: Instruction, flat: Array, offsets: Array, text: str) -> None:
        assert self.watch is not None

        def describe(at: int) -> str:
            address = int(offsets[at]) - int(self.base[flat[at]])
            return f"{text} at LDS address 0x{address:x}"

        self.watch.report(kind, inst, flat, describe)

    def note_read(self, inst: Instruction, offsets: Array, flat: Array, size: int) -> None:
        cells, epoch, me = self._cells(offsets, flat, size)
        wrote = self.writer[cells]
        never = (wrote == 0).any(1)
        if never.any():
            text = "read of bytes that nobody wrote"
            self._report("uninitialized-lds", inst, flat[never], offsets[never], text)
        raced = ((wrote >> np.uint32(6) == epoch) & (wrote != me)).any(1)
        if raced.any():
            text = "read of what another wave wrote, with no barrier between"
            self._report("race", inst, flat[raced], offsets[raced], text)
        before = self.reader[cells]
        others = (before >> np.uint32(6) == epoch) & (before != me)
        self.reader[cells] = np.where(others, (epoch << np.uint32(6)) | np.uint32(63), me)
        # Lanes of different waves that read one cell in the same instruction.
        now = self.reader[cells]
        mixed = (now != me) & (now & np.uint32(63) != 63)
        if mixed.any():
            self.reader[cells[mixed]] = now[mixed] | np.uint32(63)

    def note_write(
        self, inst: Instruction, offsets: Array, flat: Array, size: int, changed: Array | None
    ) -> None:
        cells, epoch, me = self._cells(offsets, flat, size)
        wrote, read = self.writer[cells], self.reader[cells]
        other = (wrote >> np.uint32(6) == epoch) & (wrote != me)
        readers = (read >> np.uint32(6) == epoch) & (read != me)
        self.writer[cells] = me
        if not (other.any() or readers.any()):
            return
        raced = other.any(1) | readers.any(1)
        if changed is not None:
            raced = raced & changed  # the same value again harms nobody
        if raced.any():
            text = "write over what another wave wrote or read, with no barrier between"
            self._report("race", inst, flat[raced], offsets[raced], text)

    def note_atomic(self, inst: Instruction, offsets: Array, flat: Array, size: int) -> None:
        cells, epoch, _ = self._cells(offsets, flat, size)
        # An epoch long past: written, by no wave of this epoch.
        self.writer[cells] = np.maximum(self.writer[cells], np.uint32(1)) * (epoch > 0)
