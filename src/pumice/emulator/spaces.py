"""Address spaces of a batch: private memory of every lane, global memory; LDS has its own file.

A space turns lanes' addresses into byte offsets of its backing array and says which are allowed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
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


class Space(ABC):
    """Views of the bytes by element size, and the check of an access."""

    name = "memory"
    views: dict[int, Array]

    def __init__(self, state: State, watch: Watch | None) -> None:
        self.state = state
        self.watch = watch

    def refuse(
        self,
        inst: Instruction,
        flat: Array,
        addresses: Array,
        size: int,
        kind: str = "out-of-bounds",
    ) -> None:
        """Report lanes whose access is not allowed; without a sanitizer, raise."""

        def describe(at: int) -> str:
            return f"{size} bytes at {self.name} address 0x{int(addresses[at]):x}"

        if self.watch is not None:
            self.watch.report(kind, inst, flat, describe)
            return
        raise KernelFaultError(
            f"{kind}: {describe(0)}, {inst}, {flat.size} lanes, the first is lane "
            f"{int(flat[0]) % self.state.lanes} of wave {int(flat[0]) // self.state.lanes}",
            hint="Launch with sanitize=True for the source line and workgroup.",
        )

    @abstractmethod
    def locate(
        self, inst: Instruction, addresses: Array, flat: Array, size: int
    ) -> tuple[Array, Array | None]:
        """(byte offsets, which lanes are allowed or None for all) of int64 addresses."""

    def note_read(self, inst: Instruction, offsets: Array, flat: Array, size: int) -> None:  # noqa: B027 a hook
        """Told of every read that is allowed."""

    def note_write(  # noqa: B027 a hook
        self,
        inst: Instruction,
        offsets: Array,
        flat: Array,
        size: int,
        changed: Callable[[], Array] | None,
    ) -> None:
        """Told of every write before it happens; `changed()`: which lanes change a value."""

    def note_atomic(self, inst: Instruction, offsets: Array, flat: Array, size: int) -> None:  # noqa: B027 a hook
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
