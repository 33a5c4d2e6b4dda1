"""Device memory and pinned host memory, freed with their owners."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from pumice.runtime.devices.driver.device import DriverDevice


@dataclass(frozen=True)
class MemoryInfo:
    """Bytes: free now (to all processes together), and in total."""

    free: int
    total: int


class DeviceBuffer:
    """`nbytes` of device memory at `address`; freed by `free`, with the object, or with `with`."""

    def __init__(self, device: DriverDevice, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.address = device._allocate(nbytes)
        self._finalizer = weakref.finalize(self, device._free, self.address)

    def free(self) -> None:
        """Once is enough; a second call does nothing."""
        self._finalizer()

    def __enter__(self) -> DeviceBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


class HostBuffer:
    """Pinned host memory: copies from and to it run beside the host's work. `array`: uint8."""

    def __init__(self, device: DriverDevice, nbytes: int) -> None:
        self.address = device._allocate_host(nbytes)
        raw = (ctypes.c_uint8 * nbytes).from_address(self.address)
        self.array: npt.NDArray[np.uint8] = np.ctypeslib.as_array(raw)
        self._finalizer = weakref.finalize(self, device._free_host, self.address)

    def free(self) -> None:
        """The array must not be used afterwards."""
        self._finalizer()

    def __enter__(self) -> HostBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


def host_address(array: npt.NDArray[Any], *, writable: bool) -> int:
    """The address of a contiguous array's first byte."""
    if not array.flags.c_contiguous:
        raise ValueError("the array is not contiguous")
    if writable and not array.flags.writeable:
        raise ValueError("the array is read-only")
    return int(array.ctypes.data)
