"""An executor of two kernels in Python, beneath the emulated driver."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.emulator.hip.cards import card
from pumice.emulator.hip.executor import LoadedKernel
from pumice.emulator.hip.library import HipLibrary
from pumice.errors import ArtifactError, KernelFaultError, OutOfMemoryError, UnsupportedError
from pumice.runtime.devices.driver.choose import TABLES, devices
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.library import Driver


def image(arch: str = "gfx1100") -> bytes:
    """A file that begins and ends as an ELF file does; its body names an architecture."""
    body = arch.encode().ljust(16, b"\0")
    head = bytearray(64)
    head[:4] = b"\x7fELF"
    head[40:48] = struct.pack("<Q", 64 + len(body))
    head[58:62] = struct.pack("<HH", 64, 1)
    return bytes(head) + body + bytes(64)


class ScriptedExecutor:
    """Memory from 0x1000 up; kernel `axpy(n: i32, a: f32, x, y)` and `fault()`."""

    def __init__(self, arch: str = "gfx1100", capacity: int = 1 << 40) -> None:
        self.arch, self.capacity = arch, capacity
        self.blocks: dict[int, np.ndarray] = {}
        self.next = 0x1000
        self.unloaded = 0
        self.launched: list[tuple[str, Any, Any, int]] = []

    def allocate(self, nbytes: int) -> int:
        if nbytes > self.capacity:
            raise OutOfMemoryError("the executor is full")
        address = self.next
        self.next += -(-nbytes // 256) * 256 + 4096
        self.blocks[address] = np.zeros(nbytes, np.uint8)  # pages come when they are touched
        self.blocks[address][:4096] = 0xCD
        return address

    def free(self, address: int) -> None:
        del self.blocks[address]

    def view(self, address: int, nbytes: int) -> np.ndarray:
        for begin, block in self.blocks.items():
            if begin <= address and address + nbytes <= begin + block.size:
                return block[address - begin : address - begin + nbytes]
        raise KernelFaultError(f"0x{address:x} is in no block")

    def read(self, address: int, nbytes: int) -> np.ndarray:
        return self.view(address, nbytes).copy()

    def write(self, address: int, data: np.ndarray) -> None:
        self.view(address, data.size)[:] = data

    def load(
        self, image: bytes
    ) -> tuple[Mapping[str, LoadedKernel], Mapping[str, tuple[int, int]]]:
        arch = image[64:80].rstrip(b"\0").decode()
        if not arch.startswith("gfx"):
            raise ArtifactError("the body names no architecture")
        if arch != self.arch:
            raise UnsupportedError(f"the code object is for {arch}")
        layout = ((0, 4), (4, 4), (8, 8), (16, 8))
        kernels = {
            "axpy": LoadedKernel("axpy", 24, layout, 12, 0, 0, 256),
            "fault": LoadedKernel("fault", 0, (), 1, 1024, 8, 64),
        }
        return kernels, {"table": (self.allocate(48), 48)}

    def unload(self, kernels: Mapping[str, LoadedKernel]) -> None:
        self.unloaded += 1

    def launch(
        self,
        kernel: LoadedKernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: bytes,
        *,
        together: bool,
    ) -> None:
        self.launched.append((kernel.name, grid, block, shared_bytes))
        if kernel.name == "fault":
            raise KernelFaultError("kernel fault, line 7, wave 1, lane 3: 0x10 is out of bounds")
        n, a, x, y = struct.unpack("<ifQQ", arguments[:24])
        values = self.view(y, 4 * n).view(np.float32)
        values += np.float32(a) * self.view(x, 4 * n).view(np.float32)


def emulated(arch: str = "gfx1100", **options: Any) -> tuple[DriverDevice, HipLibrary]:
    """A device on an emulated card with the scripted executor, and the library beneath."""
    library = HipLibrary(card(arch), ScriptedExecutor(arch, **options))
    driver = Driver(TABLES["rocm"], library, explain=library.explain)
    return DriverDevice(driver, devices(driver)[0]), library
