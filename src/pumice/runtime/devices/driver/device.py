"""A GPU through its driver."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pumice.errors import UsageError
from pumice.runtime.devices.driver import graph as graphs
from pumice.runtime.devices.driver.launch import Module
from pumice.runtime.devices.driver.library import Driver
from pumice.runtime.devices.driver.memory import (
    DeviceBuffer,
    HostBuffer,
    MemoryInfo,
    host_address,
)
from pumice.runtime.devices.driver.properties import DeviceProperties
from pumice.runtime.devices.driver.stream import Event, Stream


class DriverDevice:
    """Memory, copies, streams, modules and graphs of one device.

    Every thread that uses it calls `activate` first; the thread that made it need not.
    Copies and launches are put into a stream and return at once.
    """

    def __init__(self, driver: Driver, properties: DeviceProperties) -> None:
        self.driver = driver
        self.properties = properties
        self.api = properties.api
        self._captures = 0  # going on now
        self._unfreed: list[int] = []  # buffers that died during them
        self._activation: tuple[str, int | None] = ("activate_ordinal", properties.ordinal)
        if driver.has("context_retain"):
            handle = ctypes.c_int()
            driver.call(
                "device_get", ctypes.byref(handle), properties.ordinal, attempted=f"opening {self}"
            )
            context = ctypes.c_void_p()
            driver.call(
                "context_retain",
                ctypes.byref(context),
                handle.value,
                attempted=f"opening {self}",
            )
            self._activation = ("activate", context.value)
            weakref.finalize(self, driver.status, "context_release", handle.value)
        self.activate()

    def __str__(self) -> str:
        p = self.properties
        return f"{p.api}:{p.ordinal} ({p.name}, {p.arch}, {p.pci})"

    def activate(self) -> None:
        """Makes this the calling thread's device."""
        self.driver.call(*self._activation, attempted=f"switching to {self}")

    def synchronize(self) -> None:
        """Waits for all work on the device; raises what went wrong in it."""
        self.driver.call("synchronize", attempted=f"waiting for {self}")

    # -- memory -----------------------------------------------------------------------------------

    def memory(self) -> MemoryInfo:
        """Free and total bytes now."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.driver.call(
            "memory_info",
            ctypes.byref(free),
            ctypes.byref(total),
            attempted=f"asking {self} for its memory",
        )
        return MemoryInfo(free.value, total.value)

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Uninitialized device memory, aligned to at least 256 bytes; OutOfMemoryError says how
        much there is.
        """
        if nbytes < 1:
            raise UsageError(f"an allocation of {nbytes} bytes; 1 or more are allowed")
        return DeviceBuffer(self, nbytes)

    def allocate_host(self, nbytes: int) -> HostBuffer:
        """Pinned host memory."""
        if nbytes < 1:
            raise UsageError(f"an allocation of {nbytes} bytes; 1 or more are allowed")
        return HostBuffer(self, nbytes)

    def upload(self, address: int, array: npt.NDArray[Any], stream: Stream) -> None:
        """Host to device. The array must stay as it is until the stream has come that far."""
        self._copy("copy_to_device", address, host_address(array, writable=False), array, stream)

    def download(self, array: npt.NDArray[Any], address: int, stream: Stream) -> None:
        """Device to host; the array holds the data once the stream has come that far."""
        self._copy("copy_to_host", host_address(array, writable=True), address, array, stream)

    def copy(self, to: int, source: int, nbytes: int, stream: Stream) -> None:
        """Device to device."""
        self.driver.call(
            "copy_on_device",
            to,
            source,
            nbytes,
            stream.handle,
            attempted=f"copying {nbytes:,} bytes on {self}",
        )

    def fill(self, address: int, byte: int, nbytes: int, stream: Stream) -> None:
        """Sets bytes to one value (0 to 255)."""
        self.driver.call(
            "fill",
            address,
            byte,
            nbytes,
            stream.handle,
            attempted=f"filling {nbytes:,} bytes on {self}",
        )

    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> npt.NDArray[Any]:
        """A copy of device memory, after all work."""
        self.synchronize()
        array = np.empty(shape, dtype)
        stream = Stream(self)
        self.download(array, address, stream)
        stream.synchronize()
        stream.close()
        return array

    # -- work -------------------------------------------------------------------------------------

    def stream(self) -> Stream:
        return Stream(self)

    def event(self, *, timed: bool = True) -> Event:
        return Event(self, timed=timed)

    def load_kernels(self, image: bytes, name: str = "kernels") -> Module:
        """A code object made for this device's architecture. name: for messages."""
        return Module(self, image, name)

    def capture(self, stream: Stream, record: Callable[[], None]) -> graphs.Graph:
        """A graph of what `record` puts into a stream. Buffers that die meanwhile are freed after
        it, as freeing spoils a capture.
        """
        self._captures += 1
        try:
            return graphs.capture(self.driver, stream, record)
        finally:
            self._captures -= 1
            while self._unfreed and not self._captures:
                self._free(self._unfreed.pop())

    # -- for DeviceBuffer and HostBuffer ----------------------------------------------------------

    def _allocate(self, nbytes: int) -> int:
        address = ctypes.c_void_p()
        status = self.driver.status("allocate", ctypes.byref(address), nbytes)
        if status:
            attempted = f"allocating {nbytes:,} bytes on {self}"
            if status == self.driver.table.errors["out_of_memory"]:
                memory = self.memory()
                attempted += f", of whose {memory.total:,} bytes {memory.free:,} are free,"
            raise self.driver.error(status, "allocate", attempted)
        return address.value or 0

    def _free(self, address: int) -> None:
        if self._captures:
            self._unfreed.append(address)
            return
        self.driver.status(*self._activation)  # a buffer may die on any thread
        self.driver.status("free", address)

    def _allocate_host(self, nbytes: int) -> int:
        address = ctypes.c_void_p()
        self.driver.call(
            "host_allocate",
            ctypes.byref(address),
            nbytes,
            0,
            attempted=f"allocating {nbytes:,} bytes of pinned host memory",
        )
        return address.value or 0

    def _free_host(self, address: int) -> None:
        self.driver.status("host_free", address)

    def _copy(
        self, role: str, to: int, source: int, array: npt.NDArray[Any], stream: Stream
    ) -> None:
        direction = "to" if role == "copy_to_device" else "from"
        self.driver.call(
            role,
            to,
            source,
            array.nbytes,
            stream.handle,
            attempted=f"copying {array.nbytes:,} bytes {direction} {self}",
        )
