"""Groups of warps of one program as threads, with the barriers and the tensor memory accelerator
through which they meet, for `gluon_numpy`. A load lands when its barrier is waited for, and not
before; what it is about to overwrite is poisoned where it begins.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

_PATIENCE = 20.0  # seconds after which a wait is a deadlock


@dataclass
class Barrier:
    """An mbarrier: its phase is over when all have arrived and all bytes are there."""

    count: int
    waiting: int
    missing: int = 0  # bytes
    done: int = 0  # phases
    loads: list[Callable[[], int]] = field(default_factory=list)

    def settle(self) -> None:
        if self.waiting == 0 and self.missing == 0:
            self.done += 1
            self.waiting = self.count


@dataclass
class Descriptor:
    """Rows of a matrix as the accelerator loads them: nothing but zeros beyond its ends."""

    pointer: Any
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]

    @property
    def dtype(self) -> Any:
        size: int = self.pointer.memory.dtype.itemsize
        return SimpleNamespace(primitive_bitwidth=8 * size)

    def block(self, corner: Sequence[int]) -> Any:
        assert self.strides[1] == 1
        assert self.strides[0] * self.pointer.memory.dtype.itemsize % 16 == 0
        rows, cols = (
            first + np.arange(size) for first, size in zip(corner, self.block_shape, strict=True)
        )
        inside = (rows < self.shape[0])[:, None] & (cols < self.shape[1])[None, :]
        at = self.pointer + (rows[:, None] * self.strides[0] + cols[None, :])
        return at.read(inside)


class Warps:
    """One program's barriers, by their place in shared memory, and its groups of warps."""

    def __init__(self, poison: Callable[[np.ndarray], None]) -> None:
        self._poison = poison
        self._barriers: dict[int, Barrier] = {}
        self._change = threading.Condition()
        self._failed: list[BaseException] = []

    @staticmethod
    def MBarrierLayout() -> None:
        """Layouts say nothing here."""

    @staticmethod
    def _place(shared: Any) -> int:
        place: int = shared.values.__array_interface__["data"][0]
        return place

    def init(self, shared: Any, count: int) -> None:
        self._barriers[self._place(shared)] = Barrier(count, count)

    def arrive(self, shared: Any, count: int = 1, pred: Any = True) -> None:
        if pred:
            with self._change:
                barrier = self._barriers[self._place(shared)]
                barrier.waiting -= count
                assert barrier.waiting >= 0, "more arrive at a barrier than it counts"
                barrier.settle()
                self._change.notify_all()

    def expect(self, shared: Any, nbytes: int, pred: Any = True) -> None:
        if pred:
            with self._change:
                self._barriers[self._place(shared)].missing += nbytes
            self.arrive(shared)

    def load(self, descriptor: Descriptor, corner: Any, bar: Any, shared: Any) -> None:
        assert list(shared.values.shape) == list(descriptor.block_shape)
        self._poison(shared.values)

        def land() -> int:
            shared.values[...] = descriptor.block([int(place) for place in corner])
            return int(shared.values.nbytes)

        with self._change:
            self._barriers[self._place(bar)].loads.append(land)
            self._change.notify_all()

    def wait(self, shared: Any, phase: Any, pred: Any = True) -> None:
        """Until the phase of that parity is over: at first the one before the first is."""
        if not pred:
            return
        barrier = self._barriers[self._place(shared)]
        with self._change:
            while barrier.done % 2 == int(phase) % 2:
                while barrier.loads:
                    barrier.missing -= barrier.loads.pop(0)()
                    barrier.settle()
                    self._change.notify_all()
                if barrier.done % 2 != int(phase) % 2:
                    break
                assert not self._failed, "another group of warps failed"
                assert self._change.wait(_PATIENCE), "a barrier that nobody completes"

    def specialize(self, groups: Any, warps: Sequence[int], registers: Sequence[int]) -> None:
        assert len(groups) == len(warps) + 1 == len(registers) + 1
        assert all(count % 8 == 0 for count in registers)

        def go(function: Any, arguments: Any) -> None:
            try:
                with np.errstate(all="ignore"):
                    function(*arguments)
            except BaseException as error:
                with self._change:
                    self._failed.append(error)
                    self._change.notify_all()

        threads = [threading.Thread(target=go, args=group) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failed:
            raise self._failed[0]
