"""Modules of compiled kernels, their functions, and launches bound once and issued many times."""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pumice.errors import DeviceError, UsageError
from pumice.runtime.devices.driver.launch_config import (
    COOPERATIVE,
    PROGRAMMATIC,
    LaunchConfig,
    launch_config,
)
from pumice.runtime.devices.driver.stream import Stream

if TYPE_CHECKING:
    from pumice.runtime.devices.driver.device import DriverDevice

# Kinds of kernel arguments: struct's letters. "pointer" takes an address.
ARGUMENT_KINDS = {
    "pointer": "Q",
    "int32": "i",
    "int64": "q",
    "uint32": "I",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
}
_BUFFER_POINTER, _BUFFER_SIZE = 1, 2  # CU_/HIP_LAUNCH_PARAM_BUFFER_*
_SHARED_LIMIT = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_ATTRIBUTES = {"threads": 0, "shared_bytes": 1, "local_bytes": 3, "registers": 4}


class Module:
    """A code object (cubin, hsaco) on a device."""

    def __init__(self, device: DriverDevice, image: bytes, name: str) -> None:
        self.device = device
        self.name = name
        self._image = image  # HIP may read it later
        handle = ctypes.c_void_p()
        device.driver.call(
            "module_load",
            ctypes.byref(handle),
            ctypes.c_char_p(image),
            attempted=f"loading kernels {name!r} ({len(image):,} bytes) on {device}",
        )
        self.handle = handle.value
        self._finalizer = weakref.finalize(self, device.driver.status, "module_unload", self.handle)

    def function(self, name: str) -> Function:
        """A kernel by name."""
        return Function(self, name)

    def address_of(self, name: str) -> tuple[int, int]:
        """(address, bytes) of a global variable."""
        address, nbytes = ctypes.c_void_p(), ctypes.c_size_t()
        self.device.driver.call(
            "module_global",
            ctypes.byref(address),
            ctypes.byref(nbytes),
            self.handle,
            name.encode(),
            attempted=f"looking for variable {name!r} in {self.name!r}",
        )
        return address.value or 0, nbytes.value

    def close(self) -> None:
        self._finalizer()


class Function:
    """A kernel, ready to be launched."""

    def __init__(self, module: Module, name: str) -> None:
        self.module, self.name = module, name
        self.device = module.device
        handle = ctypes.c_void_p()
        self.device.driver.call(
            "module_function",
            ctypes.byref(handle),
            module.handle,
            name.encode(),
            attempted=f"looking for kernel {name!r} in {module.name!r}",
        )
        self.handle = handle.value

    def attribute(self, name: str) -> int:
        """One of _ATTRIBUTES: the most threads in a block; bytes of static shared memory and of
        spills; registers a thread."""
        if name not in _ATTRIBUTES:
            raise UsageError(f"function attribute {name!r}; allowed: {sorted(_ATTRIBUTES)}")
        out = ctypes.c_int()
        self.device.driver.call(
            "function_attribute",
            ctypes.byref(out),
            _ATTRIBUTES[name],
            self.handle,
            attempted=f"reading {name} of kernel {self.name!r}",
        )
        return out.value

    def blocks_per_unit(self, threads: int, shared_bytes: int = 0) -> int:
        """How many blocks of that size run at once on one compute unit (multiprocessor)."""
        out = ctypes.c_int()
        self.device.driver.call(
            "occupancy",
            ctypes.byref(out),
            self.handle,
            threads,
            shared_bytes,
            attempted=f"asking for the occupancy of kernel {self.name!r}",
        )
        return out.value

    def allow_shared(self, nbytes: int) -> None:
        """Lets launches ask for up to `nbytes` of dynamic shared memory; AMD needs no leave."""
        limit = self.device.properties.shared_bytes
        if nbytes > limit:
            raise DeviceError(
                f"kernel {self.name!r} needs {nbytes:,} bytes of shared memory; {self.device} has "
                f"{limit:,} a block"
            )
        if self.device.driver.has("function_shared"):
            self.device.driver.call(
                "function_shared",
                self.handle,
                _SHARED_LIMIT,
                nbytes,
                attempted=f"asking for {nbytes:,} bytes of shared memory for {self.name!r}",
            )


class Arguments:
    """A kernel's arguments as the bytes that it reads: each at a multiple of its own size."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = tuple(kinds)
        self._places: list[tuple[str, int]] = []
        end = 0
        for kind in self.kinds:
            if kind not in ARGUMENT_KINDS:
                raise UsageError(f"argument kind {kind!r}; allowed: {', '.join(ARGUMENT_KINDS)}")
            letter = "<" + ARGUMENT_KINDS[kind]
            size = struct.calcsize(letter)
            end = -(-end // size) * size
            self._places.append((letter, end))
            end += size
        self.nbytes = end
        self.buffer = ctypes.create_string_buffer(max(1, end))

    def pointers(self) -> ctypes.Array[ctypes.c_void_p]:
        """The addresses of all arguments, as launches without packed arguments take them."""
        base = ctypes.addressof(self.buffer)
        addresses = [base + offset for _, offset in self._places]
        return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)

    def set(self, index: int, value: float) -> None:
        """Writes one argument. UsageError when it doesn't fit its kind."""
        letter, offset = self._places[index]
        try:
            struct.pack_into(letter, self.buffer, offset, value)
        except struct.error as error:
            raise UsageError(
                f"argument {index} ({self.kinds[index]}) cannot be {value!r}: {error}"
            ) from None

    def set_all(self, values: Sequence[float]) -> None:
        if len(values) != len(self.kinds):
            raise UsageError(
                f"{len(values)} arguments were given; the kernel has {len(self.kinds)}"
            )
        for index, value in enumerate(values):
            self.set(index, value)


class Launch:
    """A function with its arguments, grid and block; `issue` is one C call.

    grid: blocks, block: threads, in x, y, z. The driver copies arguments when a launch is issued
    (or captured): they may change afterwards.
    cooperative: all blocks run at once (they may wait for each other), or the launch fails.
    programmatic: may begin before the launch in front of it has ended; its kernel waits where it
    needs that one's results (CUDA's programmatic dependent launch; elsewhere a plain launch).
    """

    def __init__(
        self,
        function: Function,
        arguments: Arguments,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int = 0,
        *,
        cooperative: bool = False,
        programmatic: bool = False,
    ) -> None:
        self.function, self.arguments = function, arguments
        self.grid, self.block = grid, block
        if min(*grid, *block) < 1:
            raise UsageError(
                f"kernel {function.name!r}: grid {grid}, block {block}; all must be ≥ 1"
            )
        driver = function.device.driver
        self._driver, self._call = driver, driver.functions["launch"]
        self._size = ctypes.c_size_t(arguments.nbytes)
        self._extra = (ctypes.c_void_p * 5)(
            _BUFFER_POINTER,
            ctypes.addressof(arguments.buffer),
            _BUFFER_SIZE,
            ctypes.addressof(self._size),
            driver.table.launch_end,
        )
        self._head = (function.handle, *grid, *block, shared_bytes)
        self._config: LaunchConfig | None = None
        self._pointers: ctypes.Array[ctypes.c_void_p] | None = None
        if driver.has("launch_extended") and (cooperative or programmatic):
            chosen = [COOPERATIVE] * cooperative + [PROGRAMMATIC] * programmatic
            self._config = launch_config(self._head[1:], chosen)
        elif cooperative:
            if not driver.has("launch_cooperative"):
                raise DeviceError(
                    f"kernel {function.name!r} needs all its blocks at once, which this driver "
                    "cannot promise",
                    hint="Update the driver: ROCm 5.3 or later.",
                )
            self._pointers = arguments.pointers()

    def issue(self, stream: Stream) -> None:
        """Puts the launch into a stream. The thread must have activated the device."""
        role = "launch"
        if self._config is not None:
            role = "launch_extended"
            self._config.stream = stream.handle
            status = self._driver.status(
                role, ctypes.byref(self._config), self.function.handle, None, self._extra
            )
        elif self._pointers is not None:
            role = "launch_cooperative"
            status = self._driver.status(role, *self._head, stream.handle, self._pointers)
        else:
            status = self._call(*self._head, stream.handle, None, self._extra)
        if status:
            raise self._driver.error(
                status,
                role,
                f"launching {self.function.name!r} (grid {self.grid}, block {self.block})",
            )
