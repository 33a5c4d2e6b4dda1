"""Device memory: one arena of bytes, allocations with guards between, bounds for all lanes.

Addresses are `BASE + offset into the arena`; zero and everything below BASE is never valid. LDS and
scratch seen through flat addresses lie in two apertures of their own.
"""

from __future__ import annotations

import bisect
import mmap
import sys

import numpy as np
from numpy.typing import NDArray

from pumice.errors import KernelFaultError, OutOfMemoryError, UsageError

BASE = 0x7000_0000_0000
SHARED_APERTURE = 0x1000_0000_0000
PRIVATE_APERTURE = 0x2000_0000_0000
GUARD = 4096  # bytes that no allocation covers, after each
ALIGN = 256
# Linux's MAP_NORESERVE, which Python names since 3.13 only: pages are not counted until touched.
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
_TYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Memory:
    """`capacity` bytes of address space, backed by pages only where they are touched."""

    def __init__(self, capacity: int = 1 << 34) -> None:
        capacity = -(-capacity // GUARD) * GUARD
        self.capacity = capacity
        try:
            self._map = mmap.mmap(-1, capacity, flags=mmap.MAP_SHARED | _NO_RESERVE)
        except OSError as why:
            raise OutOfMemoryError(
                f"{capacity} bytes of address space for the emulated GPU can't be had: {why}",
                hint="Make it smaller: Emulator(arch, capacity=...).",
            ) from why
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.views = {size: self.bytes.view(kind) for size, kind in _TYPES.items()}
        self._starts: list[int] = []  # sorted addresses of live allocations
        self._sizes: dict[int, int] = {}
        self._free: dict[int, list[int]] = {}  # rounded size → addresses
        self._next = BASE + GUARD
        self._table: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None  # begins and ends

    def allocate(self, size: int) -> int:
        """Address of `size` new bytes, aligned to 256; they hold what memory held before."""
        if size < 0:
            raise UsageError(f"an allocation of {size} bytes; 0 or more are allowed")
        rounded = -(-max(size, 1) // ALIGN) * ALIGN
        spare = self._free.get(rounded)
        if spare:
            address = spare.pop()
        else:
            address = self._next
            if address + rounded + GUARD > BASE + self.capacity:
                raise OutOfMemoryError(
                    f"{size} bytes of emulated memory are wanted, "
                    f"{BASE + self.capacity - address} of {self.capacity} are left"
                )
            self._next = address + rounded + GUARD
        bisect.insort(self._starts, address)
        self._table = None
        self._sizes[address] = size
        return address

    def free(self, address: int) -> None:
        """Give an allocation back; UsageError when `address` is none."""
        if address not in self._sizes:
            raise UsageError(f"0x{address:x} is not the address of an allocation")
        size = self._sizes.pop(address)
        self._starts.remove(address)
        self._table = None
        self._free.setdefault(-(-max(size, 1) // ALIGN) * ALIGN, []).append(address)

    def span(self, address: int) -> tuple[int, int] | None:
        """[begin, end) of the allocation that holds `address`, or None."""
        at = bisect.bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        begin = self._starts[at]
        end = begin + self._sizes[begin]
        return (begin, end) if address < end else None

    def _range(self, address: int, size: int, what: str) -> slice:
        span = self.span(address)
        if size and (span is None or address + size > span[1]):
            raise KernelFaultError(
                f"a host {what} of {size} bytes at 0x{address:x} leaves its allocation "
                f"({f'0x{span[0]:x} to 0x{span[1]:x}' if span else 'there is none'})"
            )
        return slice(address - BASE, address - BASE + size)

    def write(self, address: int, data: bytes | NDArray[np.uint8]) -> None:
        """Copy bytes into an allocation."""
        source = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
        self.bytes[self._range(address, source.size, "write")] = source

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        """A copy of `size` bytes."""
        found: NDArray[np.uint8] = self.bytes[self._range(address, size, "read")].copy()
        return found

    def valid(self, addresses: NDArray[np.int64], size: int) -> NDArray[np.bool_] | None:
        """Which accesses of `size` bytes lie in one allocation; None when all do."""
        if addresses.size == 0:
            return None
        low, high = int(addresses.min()), int(addresses.max())
        span = self.span(low)
        if span is not None and high + size <= span[1]:
            return None
        if self._table is None:
            ends = [a + self._sizes[a] for a in self._starts]
            self._table = np.array(self._starts, np.int64), np.array(ends, np.int64)
        starts, limits = self._table
        if not starts.size:
            return np.zeros(addresses.shape, bool)
        at = np.searchsorted(starts, addresses, side="right") - 1
        good = (at >= 0) & (addresses + size <= limits[np.maximum(at, 0)])
        return None if good.all() else good
