"""Warp-specialized kernels in Gluon as NumPy: each group of warps is a thread, barriers are waited
for, and what the tensor memory accelerator copies is there when somebody has waited for it: a
buffer that it fills is poisoned until then, one that it empties is read as late as allowed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from gluon_numpy import Language, Pointer, Shared, poison

_PATIENCE = 20.0  # seconds: a barrier that nobody passes is a fault


class _Barrier:
    """An mbarrier: arrivals that are missing, copies on their way, how often it was passed."""

    def __init__(self, count: int) -> None:
        self.count = self.missing = count
        self.bytes = 0
        self.copies: list[tuple[int, Callable[[], None]]] = []
        self.others: list[Callable[[], None]] = []
        self.passed = 0

    def step(self) -> None:
        """Lets copies arrive once nothing else is missing, and all that is expected is begun."""
        assert self.missing >= 0, "more arrivals than a barrier counts"
        if self.missing == 0 and sum(size for size, _ in self.copies) == self.bytes:
            for copy in [copy for _, copy in self.copies] + self.others:
                copy()
            self.copies.clear()
            self.others.clear()
            self.bytes = 0
            self.missing = self.count
            self.passed += 1


class Descriptor:
    """Rows of a matrix, for the accelerator."""

    def __init__(self, base: Pointer, shape: Any, strides: Any, block: Any, layout: Any) -> None:
        assert strides[1] == 1 and strides[0] * base.memory.itemsize % 16 == 0
        assert block[1] * base.memory.itemsize >= 16
        self.base, self.shape, self.stride = base, shape, strides[0]
        self.block_shape, self.layout = list(block), layout
        self.dtype = SimpleNamespace(primitive_bitwidth=8 * base.memory.itemsize)

    def at(self, row: int, column: int) -> tuple[Pointer, np.ndarray]:
        rows = row + np.arange(self.block_shape[0])[:, None]
        columns = column + np.arange(self.block_shape[1])[None, :]
        inside = (rows < self.shape[0]) & (columns < self.shape[1])
        return self.base + (rows * self.stride + columns), inside


class Warps(Language):
    """Gluon for Hopper with barriers, the accelerator and groups of warps."""

    def __init__(self, program: int, programs: int) -> None:
        super().__init__(program, programs)
        self.barriers: dict[int, _Barrier] = {}
        self.changed = threading.Condition()
        self.local = threading.local()
        self.failures: list[BaseException] = []

    def stands(self) -> dict[str, Any]:
        tma = SimpleNamespace(
            make_tensor_descriptor=Descriptor, store_wait=self.store_wait,
            async_copy_global_to_shared=self.load_block,
            async_copy_shared_to_global=self.store_block,
        )  # fmt: skip
        barrier = SimpleNamespace(
            init=self.init, wait=self.wait, arrive=self.arrive, expect=self.expect,
            MBarrierLayout=lambda: None,
        )  # fmt: skip
        return super().stands() | {
            "tl": self, "tma": tma, "mbarrier": barrier, "async_load": self.load_block,
            "async_store": self.store_block, "begin_copy": self.begin_copy,
            "fence_async_shared": lambda: None,
        }  # fmt: skip

    @staticmethod
    def num_warps() -> int:
        """Only of layouts, which say nothing here."""
        return 1

    @staticmethod
    def cdiv(a: Any, b: Any) -> Any:
        return -(-a // b)

    def _barrier(self, shared: Shared) -> _Barrier:
        return self.barriers[shared.values.__array_interface__["data"][0]]

    def init(self, shared: Shared, count: int) -> None:
        self.barriers[shared.values.__array_interface__["data"][0]] = _Barrier(count)

    def arrive(self, shared: Shared, count: int = 1, pred: Any = True) -> None:
        if pred:
            with self.changed:
                barrier = self._barrier(shared)
                barrier.missing -= count
                barrier.step()
                self.changed.notify_all()

    def expect(self, shared: Shared, count: int, pred: Any = True) -> None:
        """Arrives with the copies that are to come; they are begun at once after it."""
        if pred:
            with self.changed:
                barrier = self._barrier(shared)
                barrier.bytes += count
                barrier.missing -= 1

    def wait(self, shared: Shared, phase: int, pred: Any = True) -> None:
        if not pred:
            return
        with self.changed:
            barrier = self._barrier(shared)
            before = barrier.passed

            def over() -> bool:
                if self.failures:
                    return True
                passed = barrier.passed
                barrier.step()
                if barrier.passed > passed:
                    self.changed.notify_all()
                return (barrier.passed - 1) % 2 == phase

            assert self.changed.wait_for(over, _PATIENCE) and not self.failures
            assert barrier.passed <= before + 1, "a barrier was passed twice during one wait"

    def begin_copy(self, buffer: Shared, pointer: Pointer, mask: Any = None) -> None:
        """Where the mask is false, zeros come."""
        assert buffer.values.shape == pointer.place.shape
        poison(buffer.values)
        self.local.begun.append(lambda: buffer.store(pointer.read(mask)))

    def mbarrier_arrive(self, shared: Shared, increment_count: bool = True) -> None:
        """A barrier waits for the copies that this group has begun, too: it counts them itself, or
        the threads that wait for them arrive."""
        with self.changed:
            barrier = self._barrier(shared)
            assert barrier.missing > 0, "copies that nobody waits for"
            barrier.others += self.local.begun
            self.local.begun = []
            if not increment_count:
                barrier.missing -= self.local.threads

    def load_block(
        self, rows: Descriptor, coord: Any, shared: Shared, buffer: Shared, pred: Any = True
    ) -> None:
        if not pred:
            return
        assert list(buffer.values.shape) == rows.block_shape
        poison(buffer.values)
        pointer, inside = rows.at(*coord)
        copy = (buffer.values.nbytes, lambda: buffer.store(pointer.read(inside, 0)))
        with self.changed:
            self._barrier(shared).copies.append(copy)
            self.changed.notify_all()

    def store_block(self, rows: Descriptor, coord: Any, buffer: Shared) -> None:
        assert list(buffer.values.shape) == rows.block_shape
        pointer, inside = rows.at(*coord)
        self.local.stores.append(lambda: pointer.write(buffer.values, inside))

    def store_wait(self, count: int) -> None:
        while len(self.local.stores) > count:
            self.local.stores.pop(0)()

    def warp_specialize(self, parts: Any, warps: Any, registers: Any) -> None:
        def group(function: Any, values: Any, warps: int) -> None:
            self.local.stores, self.local.begun, self.local.threads = [], [], 32 * warps
            try:
                with np.errstate(all="ignore"):
                    function(*values)
                assert not self.local.stores, "shared memory is left before it was stored from"
            except BaseException as error:
                with self.changed:
                    self.failures.append(error)
                    self.changed.notify_all()

        threads = [
            threading.Thread(target=group, args=(*part, count), daemon=True)
            for part, count in zip(parts, [4, *warps], strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * _PATIENCE)
        if self.failures:
            raise self.failures[0]
