"""Memory: allocations, pinned host memory, copies."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np

from pumice.emulator.hip import abi
from pumice.emulator.hip.device_calls import DeviceCalls
from pumice.emulator.hip.status import HipError, Status
from pumice.errors import OutOfMemoryError


class MemoryCalls(DeviceCalls):
    """hipMalloc, hipHost*, hipMem*.

    Copies from and to pageable memory behave as the driver's: staged before the call returns, done
    when it returns.
    """

    def _hipMemGetInfo(self, free: int, total: int) -> None:
        abi.write_size(free, self.card.memory_bytes - self.used)
        abi.write_size(total, self.card.memory_bytes)

    def _hipMalloc(self, out: int, nbytes: int) -> None:
        if self.used + nbytes > self.card.memory_bytes:
            left = self.card.memory_bytes - self.used
            raise HipError(Status.OUT_OF_MEMORY, f"{nbytes} bytes are wanted, {left} are left")
        try:
            address = self.executor.allocate(nbytes)
        except OutOfMemoryError as error:
            raise HipError(Status.OUT_OF_MEMORY, str(error)) from None
        self.used += nbytes
        self._sizes[address] = nbytes
        abi.write_pointer(out, address)

    def _hipFree(self, address: int) -> None:
        if not address:
            return
        if address not in self._sizes:
            raise HipError(Status.INVALID_VALUE, f"0x{address:x} is not the start of an allocation")
        if self._lost is None:
            self._hipDeviceSynchronize()
        self.executor.free(address)
        self.used -= self._sizes.pop(address)

    def _hipHostMalloc(self, out: int, nbytes: int, flags: int) -> None:
        owner = ctypes.create_string_buffer(max(1, nbytes))
        address = ctypes.addressof(owner)
        self._host[address] = owner
        self._pinned[address] = nbytes
        abi.write_pointer(out, address)

    def _hipHostFree(self, address: int) -> None:
        if self._host.pop(address, None) is None:
            raise HipError(Status.INVALID_VALUE, f"0x{address:x} was not given by hipHostMalloc")
        del self._pinned[address]

    def _hipHostRegister(self, address: int, nbytes: int, flags: int) -> None:
        self._pinned[address] = nbytes

    def _hipHostUnregister(self, address: int) -> None:
        if address in self._host or self._pinned.pop(address, None) is None:
            raise HipError(Status.INVALID_VALUE, f"0x{address:x} is not registered")

    def _is_pinned(self, address: int, nbytes: int) -> bool:
        return any(
            begin <= address and address + nbytes <= begin + size
            for begin, size in self._pinned.items()
        )

    def _access(self, what: str, address: int, nbytes: int) -> None:
        for begin, size in itertools.chain(self._sizes.items(), self._variables.items()):
            if begin <= address and address + nbytes <= begin + size:
                return
        raise HipError(
            Status.INVALID_VALUE,
            f"{what} of {nbytes} bytes at 0x{address:x}, which is in no allocation",
        )

    def _hipMemcpyHtoDAsync(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._access("a copy", to, nbytes)
        if self._is_pinned(source, nbytes):
            self._stream(stream).put(lambda: self.executor.write(to, _host(source, nbytes)))
        else:  # staged before the call returns
            data = _host(source, nbytes).copy()
            self._stream(stream).put(lambda: self.executor.write(to, data))

    def _hipMemcpyDtoHAsync(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._access("a copy", source, nbytes)

        def work() -> None:
            _host(to, nbytes)[:] = self.executor.read(source, nbytes)

        queue = self._stream(stream)
        queue.put(work)
        if queue.capture is None and not self._is_pinned(to, nbytes):
            self._run(queue)  # returns when the data is there

    def _hipMemcpyDtoDAsync(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._access("a copy", to, nbytes)
        self._access("a copy", source, nbytes)
        self._stream(stream).put(
            lambda: self.executor.write(to, self.executor.read(source, nbytes))
        )

    def _hipMemsetD8Async(self, to: int, byte: int, nbytes: int, stream: int) -> None:
        self._access("a fill", to, nbytes)
        self._stream(stream).put(lambda: self.executor.write(to, np.full(nbytes, byte, np.uint8)))


def _host(address: int, nbytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Host memory as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
