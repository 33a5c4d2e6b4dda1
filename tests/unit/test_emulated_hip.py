"""Triton's kernels through the real ROCm device on emulated cards."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from emulator_kernels import compiled, vector_add

from pumice.emulator.encodings import tables
from pumice.emulator.hip.cards import card
from pumice.emulator.hip.library import HipLibrary
from pumice.emulator.hip.machine import Machine
from pumice.emulator.report import LaunchReport
from pumice.errors import DeviceError, UnsupportedError
from pumice.runtime.devices.driver.choose import TABLES, devices, open_device
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.launch import Arguments, Launch
from pumice.runtime.devices.driver.library import Driver

SIGNATURE = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
# Triton's kernels take two more pointers: scratch memory and a profiler's.
KINDS = ("pointer", "pointer", "pointer", "int32", "pointer", "pointer")
BLOCK, WARPS = 128, 2


def add_kernel(arch: str) -> bytes:
    constants, options = (("BLOCK", BLOCK),), (("num_warps", WARPS),)
    kernel = compiled(vector_add, arch, tuple(SIGNATURE.items()), constants, options)
    return bytes(kernel.asm["hsaco"])


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201", "gfx942", "gfx90a"])
def test_vector_addition(arch: str) -> None:
    device = open_device(f"rocm:emulated-{arch}")
    n = 1003
    random = np.random.default_rng(1)
    x, y = (random.standard_normal(n).astype(np.float32) for _ in range(2))
    stream = device.stream()
    buffers = [device.allocate(4 * n) for _ in range(3)]
    for buffer, array in zip(buffers, (x, y, np.full(n, np.nan, np.float32)), strict=True):
        device.upload(buffer.address, array, stream)
    function = device.load_kernels(add_kernel(arch)).function("vector_add")
    assert 0 < function.attribute("registers") < 128 and function.attribute("local_bytes") == 0
    arguments = Arguments(KINDS)
    arguments.set_all([*(b.address for b in buffers), n, 0, 0])
    threads = WARPS * device.properties.wave
    launch = Launch(function, arguments, (-(-n // BLOCK), 1, 1), (threads, 1, 1))
    launch.issue(stream)
    stream.synchronize()
    out = device.read(buffers[2].address, (n,), np.float32)
    np.testing.assert_array_equal(out, x + y)


def test_a_captured_graph_is_replayed_on_new_data() -> None:
    device = open_device("rocm:emulated-gfx1100")
    n = 257
    stream = device.stream()
    x, y, out = (device.allocate(4 * n) for _ in range(3))
    function = device.load_kernels(add_kernel("gfx1100")).function("vector_add")
    arguments = Arguments(KINDS)

    def record() -> None:  # out = x + y, then x = out + out
        for a, b, c in ((x, y, out), (out, out, x)):
            arguments.set_all([a.address, b.address, c.address, n, 0, 0])
            Launch(function, arguments, (3, 1, 1), (64, 1, 1)).issue(stream)

    device.fill(y.address, 0, 4 * n, stream)
    graph = device.capture(stream, record)
    assert graph.nodes == 2
    device.upload(x.address, np.ones(n, np.float32), stream)
    for step in range(3):
        graph.launch(stream)
        stream.synchronize()
        assert (device.read(x.address, (n,), np.float32) == 2 ** (step + 1)).all()


@pytest.mark.parametrize(
    ("kind", "place"), [("emulated", "rocm:sanitized-gfx1100"), ("sanitized", "emulator_kernels")]
)
def test_an_access_out_of_bounds_is_reported_with_its_place(kind: str, place: str) -> None:
    device = open_device(f"rocm:{kind}-gfx1100")
    n = 100
    stream = device.stream()
    buffers = [device.allocate(4 * n) for _ in range(3)]
    for buffer in buffers:
        device.fill(buffer.address, 0, 4 * n, stream)
    function = device.load_kernels(add_kernel("gfx1100")).function("vector_add")
    arguments = Arguments(KINDS)
    arguments.set_all([*(b.address for b in buffers), n + 1, 0, 0])
    Launch(function, arguments, (1, 1, 1), (64, 1, 1)).issue(stream)
    with pytest.raises(DeviceError, match=rf"hipErrorIllegalAddress.*vector_add.*{place}"):
        stream.synchronize()


def test_launches_can_be_observed() -> None:
    chosen = card("gfx1100")
    machine = Machine(chosen)
    reports: list[LaunchReport] = []
    machine.observe = reports.append
    driver = Driver(TABLES["rocm"], HipLibrary(chosen, machine))
    device = DriverDevice(driver, devices(driver)[0])
    stream, n = device.stream(), 1000
    buffers = [device.allocate(4 * n) for _ in range(3)]
    for buffer in buffers:
        device.fill(buffer.address, 0, 4 * n, stream)
    function = device.load_kernels(add_kernel("gfx1100")).function("vector_add")
    arguments = Arguments(KINDS)
    arguments.set_all([*(b.address for b in buffers), n, 0, 0])
    Launch(function, arguments, (8, 1, 1), (64, 1, 1)).issue(stream)
    stream.synchronize()
    assert [report.kernel for report in reports] == ["vector_add"]
    assert (reports[0].bytes_read, reports[0].bytes_written) == (8 * n, 4 * n)


def test_unloading_gives_the_memory_back() -> None:
    chosen = card("gfx1100")
    machine = Machine(chosen)
    driver = Driver(TABLES["rocm"], HipLibrary(chosen, machine))
    device = DriverDevice(driver, devices(driver)[0])
    first = device.load_kernels(add_kernel("gfx1100"))
    assert len(machine.emulator.modules) == 1
    first.close()
    assert machine.emulator.modules == []


def test_kernels_of_another_architecture_are_refused() -> None:
    device = open_device("rocm:emulated-gfx1100")
    with pytest.raises(DeviceError, match=r"hipErrorNoBinaryForGpu.*gfx942.*gfx1100"):
        device.load_kernels(add_kernel("gfx942"))
    with pytest.raises(DeviceError, match="hipErrorInvalidImage"):
        device.load_kernels(b"\x7fELF" + bytes(200))


def test_a_missing_package_is_told_when_the_card_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    tables.cache_clear()
    monkeypatch.setitem(sys.modules, "tinygrad.renderer", None)
    with pytest.raises(UnsupportedError, match="needs the package tinygrad") as error:
        open_device("rocm:emulated-gfx1100")
    assert "pumice[emulator]" in str(error.value.hint)
    monkeypatch.undo()
    tables.cache_clear()
    open_device("rocm:emulated-gfx1100")
