"""NVIDIA's half of the driver table over the emulated card: contexts, error texts, launch lists."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from driver_fakes import ScriptedExecutor, image

from pumice.emulator.hip.cards import card
from pumice.emulator.hip.library import HipLibrary
from pumice.errors import DeviceError, OutOfMemoryError
from pumice.runtime.devices.driver import cuda, rocm
from pumice.runtime.devices.driver.choose import devices
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.launch import Arguments, Launch
from pumice.runtime.devices.driver.library import Driver

P, I = ctypes.c_void_p, ctypes.c_int  # noqa: E741
_ATTRIBUTES = {cuda.TABLE.attributes[k]: rocm.TABLE.attributes[k] for k in cuda.TABLE.attributes}


class FakeCuda:
    """libcuda's functions by way of the emulated libamdhip64's: the same roles, other names."""

    def __init__(self) -> None:
        self.hip = HipLibrary(card("gfx1100"), ScriptedExecutor())
        self.hip_driver = Driver(rocm.TABLE, self.hip)
        self.roles = {symbol: role for role, symbol in cuda.TABLE.symbols.items()}
        self.log: list[tuple[str, Any]] = []
        self.shared = 0
        self._kept: dict[str, Any] = {}
        self._texts: dict[str, Any] = {}

    def __getattr__(self, symbol: str) -> Any:
        if symbol not in self.roles:
            raise AttributeError(symbol)
        role = self.roles[symbol]
        own = getattr(self, f"_{role}", None)
        if own is None:
            return getattr(self.hip, rocm.TABLE.symbols[role])
        if symbol not in self._kept:
            kinds = [ctypes.c_uint] * 7 if role == "launch" else []
            types = {
                "activate": (P,), "context_retain": (P, I), "context_release": (I,),
                "function_shared": (P, I, I), "error_name_into": (I, P), "error_text_into": (I, P),
                "device_attribute": (P, I, I), "launch": (P, *kinds, P, P, P),
                "launch_extended": (P, P, P, P),
            }[role]  # fmt: skip
            self._kept[symbol] = ctypes.CFUNCTYPE(I, *types)(own)
        return self._kept[symbol]

    def _activate(self, context: int | None) -> int:
        self.log.append(("activate", context))
        return 0 if context == 0xC0DE else 201

    def _context_retain(self, out: int, device: int) -> int:
        P.from_address(out).value = 0xC0DE
        return 0

    def _context_release(self, device: int) -> int:
        self.log.append(("release", device))
        return 0

    def _function_shared(self, function: int, attribute: int, value: int) -> int:
        self.log.append(("shared", (attribute, value)))
        return 0

    def _device_attribute(self, out: int, attribute: int, device: int) -> int:
        value = {cuda.TABLE.attributes["major"]: 9, cuda.TABLE.attributes["minor"]: 0}
        if attribute in value:
            I.from_address(out).value = value[attribute]
            return 0
        translated = _ATTRIBUTES[attribute]
        return int(self.hip.hipDeviceGetAttribute(out, translated, device))

    def _launch(self, function: int, *rest: Any) -> int:
        pairs = (P * 5).from_address(rest[-1])
        assert pairs[4] is None, "CUDA's list ends with 0"
        pairs[4] = rocm.TABLE.launch_end
        try:
            return int(self.hip.hipModuleLaunchKernel(function, *rest))
        finally:
            pairs[4] = None

    def _launch_extended(self, config: int, function: int, *rest: Any) -> int:
        """Reads CUlaunchConfig as cuda.h lays it out."""
        sizes = (ctypes.c_uint * 7).from_address(config)
        stream, attributes = (P.from_address(config + at).value for at in (32, 40))
        count = ctypes.c_uint.from_address(config + 48).value
        numbers = [ctypes.c_uint.from_address(attributes + 72 * i).value for i in range(count)]
        values = [ctypes.c_uint.from_address(attributes + 72 * i + 8).value for i in range(count)]
        self.log.append(("attributes", list(zip(numbers, values, strict=True))))
        return self._launch(function, *sizes, stream, *rest)

    def _error_name_into(self, status: int, out: int) -> int:
        return self._into({2: "CUDA_ERROR_OUT_OF_MEMORY"}.get(status, f"CUDA_ERROR_{status}"), out)

    def _error_text_into(self, status: int, out: int) -> int:
        return self._into("a text", out) if status != 999 else 1

    def _into(self, text: str, out: int) -> int:
        buffer = self._texts.setdefault(text, ctypes.create_string_buffer(text.encode()))
        P.from_address(out).value = ctypes.addressof(buffer)
        return 0


def opened() -> tuple[DriverDevice, FakeCuda]:
    library = FakeCuda()
    driver = Driver(cuda.TABLE, library)
    return DriverDevice(driver, devices(driver)[0]), library


def test_a_context_is_retained_made_current_and_released() -> None:
    device, library = opened()
    assert device.properties.arch == "sm_90" and device.api == "cuda"
    assert library.log == [("activate", 0xC0DE)]
    device.activate()
    del device
    assert library.log == [("activate", 0xC0DE), ("activate", 0xC0DE), ("release", 0)]


def test_a_launch_and_a_graph() -> None:
    device, library = opened()
    stream = device.stream()
    x, y = (device.allocate(400) for _ in range(2))
    device.upload(x.address, np.full(100, 2, np.float32), stream)
    device.upload(y.address, np.ones(100, np.float32), stream)
    function = device.load_kernels(image()).function("axpy")
    function.allow_shared(50_000)
    assert library.log[-1] == ("shared", (8, 50_000))
    arguments = Arguments(("int32", "float32", "pointer", "pointer"))
    arguments.set_all([100, 3, x.address, y.address])
    launch = Launch(function, arguments, (1, 1, 1), (128, 1, 1))
    launch.issue(stream)
    graph = device.capture(stream, lambda: launch.issue(stream))
    graph.launch(stream)
    stream.synchronize()
    assert (device.read(y.address, (100,), np.float32) == 13).all()


def test_attributes_of_a_launch() -> None:
    device, library = opened()
    stream, buffer = device.stream(), device.allocate(8)
    device.fill(buffer.address, 0, 8, stream)
    function = device.load_kernels(image()).function("axpy")
    arguments = Arguments(("int32", "float32", "pointer", "pointer"))
    arguments.set_all([1, 1, buffer.address, buffer.address + 4])
    for options, expected in (
        ({"programmatic": True}, [(6, 1)]),
        ({"cooperative": True, "programmatic": True}, [(2, 1), (6, 1)]),
    ):
        launch = Launch(function, arguments, (3, 2, 1), (64, 2, 1), 16, **options)
        launch.issue(stream)
        assert library.log[-1] == ("attributes", expected)
    stream.synchronize()
    assert library.hip.executor.launched == [("axpy", (3, 2, 1), (64, 2, 1), 16)] * 2
    assert function.blocks_per_unit(256) == 4


def test_errors_come_through_pointers() -> None:
    device, _ = opened()
    with pytest.raises(OutOfMemoryError, match=r"cuMemAlloc_v2 returned CUDA_ERROR_OUT_OF_MEMORY"):
        device.allocate(1 << 50)
    with pytest.raises(DeviceError, match=r"cuModuleLoadData returned CUDA_ERROR_200 \(200: a"):
        device.load_kernels(bytes(64))
    assert "999: unknown error" in str(device.driver.error(999, "free", "freeing"))
