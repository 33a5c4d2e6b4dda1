"""The driver-level device over an emulated libamdhip64: memory, copies, launches, errors."""

from __future__ import annotations

import ctypes
import gc
import signal
from typing import Any

import numpy as np
import pytest
from driver_fakes import emulated, image
from hypothesis import given
from hypothesis import strategies as st

from pumice.emulator.hip.status import Status
from pumice.errors import DeviceError, OutOfMemoryError, UsageError
from pumice.runtime.devices.driver.launch import ARGUMENT_KINDS, Arguments, Launch

AXPY = ("int32", "float32", "pointer", "pointer")


def test_properties() -> None:
    device, _ = emulated("gfx942")
    p = device.properties
    assert (p.api, p.ordinal, p.name, p.arch) == ("rocm", 0, "AMD Instinct MI300X", "gfx942")
    assert (p.wave, p.units, p.memory_bytes) == (64, 304, 192 << 30)
    assert (p.shared_bytes, p.threads_per_block, p.integrated) == (65536, 1024, False)
    assert p.pci == "0000:03:00.0"
    assert emulated("gfx1151")[0].properties.integrated
    assert str(device) == "rocm:0 (AMD Instinct MI300X, gfx942, 0000:03:00.0)"


def test_memory_is_counted_and_given_back() -> None:
    device, library = emulated()
    total = 24 << 30
    assert device.memory().total == device.memory().free == total
    first = device.allocate(1000)
    with device.allocate(24) as second:
        assert device.memory().free == total - 1024
        assert first.address % 256 == 0 and second.address != first.address
    assert device.memory().free == total - 1000
    first.free()
    first.free()
    assert device.memory().free == total
    device.allocate(77)
    gc.collect()
    assert library.used == 0


def test_too_much_memory_says_how_much_there_is() -> None:
    device, _ = emulated()
    held = device.allocate(20 << 30)
    with pytest.raises(OutOfMemoryError) as caught:
        device.allocate(5 << 30)
    message = str(caught.value)
    for part in ("5,368,709,120", "25,769,803,776", "4,294,967,296", "hipErrorOutOfMemory"):
        assert part in message
    assert "hipMalloc" in message and held.nbytes
    with pytest.raises(UsageError, match="0 bytes"):
        device.allocate(0)


def test_copies_go_both_ways() -> None:
    device, _ = emulated()
    stream = device.stream()
    source = np.arange(1003, dtype=np.float32)
    a, b = device.allocate(source.nbytes), device.allocate(source.nbytes)
    device.upload(a.address, source, stream)
    device.copy(b.address, a.address, source.nbytes, stream)
    device.fill(b.address, 0, 8, stream)
    out = np.full_like(source, np.nan)
    device.download(out, b.address, stream)
    np.testing.assert_array_equal(out[2:], source[2:])
    np.testing.assert_array_equal(out[:2], 0)
    np.testing.assert_array_equal(device.read(a.address, (17, 59), np.float32).ravel(), source)


def test_a_pageable_source_may_change_after_the_call() -> None:
    device, _ = emulated()
    stream = device.stream()
    source = np.ones(8, np.uint8)
    buffer = device.allocate(8)
    device.upload(buffer.address, source, stream)
    source[:] = 2
    assert device.read(buffer.address, (8,), np.uint8).tolist() == [1] * 8


def test_a_pinned_copy_is_there_after_waiting_only() -> None:
    device, _ = emulated()
    stream = device.stream()
    buffer = device.allocate(64)
    with device.allocate_host(64) as host:
        host.array[:] = 7
        device.upload(buffer.address, host.array, stream)
        stream.synchronize()
        host.array[:] = 0
        device.download(host.array, buffer.address, stream)
        assert (host.array == 0).all()
        stream.synchronize()
        assert (host.array == 7).all()


def test_bad_arrays_and_copies_are_refused() -> None:
    device, _ = emulated()
    stream = device.stream()
    buffer = device.allocate(100)
    with pytest.raises(ValueError, match="contiguous"):
        device.upload(buffer.address, np.zeros((4, 4))[:, ::2], stream)
    frozen = np.zeros(4, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        device.download(frozen, buffer.address, stream)
    with pytest.raises(DeviceError, match=r"hipMemcpyHtoDAsync returned hipErrorInvalidValue.*101"):
        device.upload(buffer.address, np.zeros(101, np.uint8), stream)


def launched(device, n: int = 1000, factor: float = 3.0):
    """axpy with its operands on the device: (launch, arguments, x, y, buffers)."""
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(n).astype(np.float32) for _ in range(2))
    buffers = [device.allocate(4 * n) for _ in range(2)]
    stream = device.stream()
    for buffer, array in zip(buffers, (x, y), strict=True):
        device.upload(buffer.address, array, stream)
    stream.synchronize()
    arguments = Arguments(AXPY)
    arguments.set_all([n, factor, *(b.address for b in buffers)])
    function = device.load_kernels(image()).function("axpy")
    return Launch(function, arguments, (4, 1, 1), (256, 1, 1)), arguments, x, y, buffers


def test_a_launch() -> None:
    device, library = emulated()
    launch, _, x, y, buffers = launched(device)
    stream = device.stream()
    launch.issue(stream)
    assert library.executor.launched == []  # not yet
    stream.synchronize()
    assert library.executor.launched == [("axpy", (4, 1, 1), (256, 1, 1), 0)]
    np.testing.assert_array_equal(
        device.read(buffers[1].address, (1000,), np.float32), y + np.float32(3) * x
    )


def test_arguments_are_copied_when_a_launch_is_issued() -> None:
    device, _ = emulated()
    launch, arguments, x, y, buffers = launched(device)
    stream = device.stream()
    launch.issue(stream)
    arguments.set(1, 100.0)
    launch.issue(stream)
    stream.synchronize()
    expected = (y + np.float32(3) * x) + np.float32(100) * x
    np.testing.assert_array_equal(device.read(buffers[1].address, (1000,), np.float32), expected)


def test_arguments_lie_at_multiples_of_their_size() -> None:
    arguments = Arguments(["int32", "pointer", "float32", "int32", "float64", "uint32"])
    assert arguments.nbytes == 36
    arguments.set_all([-1, 0x1122334455667788, 1.0, 5, -2.0, 0xFFFFFFFF])
    raw = arguments.buffer.raw
    assert raw[0:4] == b"\xff" * 4 and raw[8:16] == bytes.fromhex("8877665544332211")
    assert raw[16:20] == bytes.fromhex("0000803f") and raw[32:36] == b"\xff" * 4
    assert Arguments([]).nbytes == 0


@given(st.lists(st.sampled_from(sorted(ARGUMENT_KINDS)), max_size=12))
def test_arguments_lie_as_a_c_compiler_lays_them(kinds: list[str]) -> None:
    types = {
        "pointer": ctypes.c_void_p, "int32": ctypes.c_int32, "int64": ctypes.c_int64,
        "uint32": ctypes.c_uint32, "uint64": ctypes.c_uint64, "float32": ctypes.c_float,
        "float64": ctypes.c_double,
    }  # fmt: skip

    class Layout(ctypes.Structure):
        _fields_ = tuple((f"a{i}", types[kind]) for i, kind in enumerate(kinds))

    arguments = Arguments(kinds)
    values = list(range(1, len(kinds) + 1))
    arguments.set_all(values)
    raw = arguments.buffer.raw[: arguments.nbytes].ljust(ctypes.sizeof(Layout), b"\0")
    read = Layout.from_buffer_copy(raw) if kinds else Layout()
    assert [getattr(read, f"a{i}") for i in range(len(kinds))] == values
    base = ctypes.addressof(arguments.buffer)
    offsets = [pointer - base for pointer in arguments.pointers()[: len(kinds)]]
    assert offsets == [getattr(Layout, f"a{i}").offset for i in range(len(kinds))]


@pytest.mark.parametrize(
    ("index", "value"), [(0, 1 << 31), (0, 1.5), (1, -1), (1, 1 << 64), (2, "text")]
)
def test_arguments_that_do_not_fit_are_refused(index: int, value: object) -> None:
    arguments = Arguments(["int32", "pointer", "float32"])
    with pytest.raises(UsageError, match=f"argument {index} "):
        arguments.set(index, value)


def test_misuse_of_arguments_is_refused() -> None:
    with pytest.raises(UsageError, match="'int8'"):
        Arguments(["int8"])
    with pytest.raises(UsageError, match="2 arguments were given; the kernel has 1"):
        Arguments(["int32"]).set_all([1, 2])
    device, _ = emulated()
    function = device.load_kernels(image()).function("axpy")
    with pytest.raises(UsageError, match="must be ≥ 1"):
        Launch(function, Arguments(AXPY), (0, 1, 1), (64, 1, 1))
    with pytest.raises(DeviceError, match=r"hipErrorInvalidValue.*12 bytes of arguments"):
        launch = Launch(function, Arguments(["int32"] * 3), (1, 1, 1), (64, 1, 1))
        launch.issue(device.stream())


def test_a_block_too_large_is_refused_by_the_driver() -> None:
    device, _ = emulated()
    function = device.load_kernels(image()).function("axpy")
    assert function.attribute("threads") == 256 and function.attribute("registers") == 12
    launch = Launch(function, Arguments(AXPY), (1, 1, 1), (512, 1, 1))
    with pytest.raises(DeviceError, match=r"launching 'axpy' .* hipErrorLaunchFailure"):
        launch.issue(device.stream())
    with pytest.raises(UsageError, match="function attribute 'speed'"):
        function.attribute("speed")


def test_occupancy() -> None:
    device, _ = emulated()
    module = device.load_kernels(image())
    axpy, fault = module.function("axpy"), module.function("fault")
    assert axpy.blocks_per_unit(256) == 4  # 12 registers: 16 waves on each of 2 SIMDs, 8 a block
    assert axpy.blocks_per_unit(64, 32768) == 2
    assert fault.blocks_per_unit(64, 65536) == 0  # its own kilobyte is too much
    with pytest.raises(DeviceError, match=r"occupancy of kernel 'axpy'.*512 threads"):
        axpy.blocks_per_unit(512)


def test_a_cooperative_launch_must_fit_the_device() -> None:
    device, library = emulated()
    launch, arguments, *_ = launched(device)
    function = launch.function
    pointers = arguments.pointers()
    assert [p - pointers[0] for p in pointers] == [0, 4, 8, 16]
    stream = device.stream()
    Launch(function, arguments, (4, 1, 1), (256, 1, 1), cooperative=True).issue(stream)
    stream.synchronize()
    assert library.executor.launched[-1][1] == (4, 1, 1)
    crowd = 4 * device.properties.units + 1
    together = Launch(function, arguments, (crowd, 1, 1), (256, 1, 1), cooperative=True)
    with pytest.raises(DeviceError, match=r"hipErrorCooperativeLaunchTooLarge.*384 run at once"):
        together.issue(stream)


def test_a_programmatic_launch_is_a_plain_one_without_that_driver() -> None:
    device, library = emulated()
    launch, arguments, *_ = launched(device)
    stream = device.stream()
    early = Launch(launch.function, arguments, (4, 1, 1), (256, 1, 1), programmatic=True)
    early.issue(stream)
    stream.synchronize()
    assert len(library.executor.launched) == 1


def test_shared_memory_has_a_limit() -> None:
    device, _ = emulated()
    function = device.load_kernels(image()).function("fault")
    function.allow_shared(65536)
    with pytest.raises(DeviceError, match="65,537 bytes of shared memory"):
        function.allow_shared(65537)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (image("gfx942"), r"'attention'.*hipErrorNoBinaryForGpu.*for gfx942"),
        (image("sm_90"), "hipErrorInvalidImage"),
        (b"not an ELF file".ljust(64), "hipErrorInvalidImage.*not an ELF"),
    ],
)
def test_kernels_for_something_else_are_refused(data: bytes, match: str) -> None:
    device, _ = emulated("gfx1100")
    with pytest.raises(DeviceError, match=match) as caught:
        device.load_kernels(data, "attention")
    assert "compile for its arch" in str(caught.value)


def test_names_that_are_not_there() -> None:
    device, _ = emulated()
    module = device.load_kernels(image())
    assert module.address_of("table")[1] == 48
    with pytest.raises(DeviceError, match=r"kernel 'gemm'.*hipErrorNotFound.*axpy, fault"):
        module.function("gemm")
    with pytest.raises(DeviceError, match="variable 'x'"):
        module.address_of("x")


def test_a_module_is_unloaded_after_its_kernels_have_run() -> None:
    device, library = emulated()
    launch, *_ = launched(device)
    stream = device.stream()
    launch.issue(stream)
    launch.function.module.close()
    assert len(library.executor.launched) == library.executor.unloaded == 1
    del launch
    gc.collect()
    assert library.executor.unloaded == 1


def test_a_fault_surfaces_when_waiting_and_stays() -> None:
    device, _ = emulated()
    launch, *_ = launched(device)
    fault = Launch(
        device.load_kernels(image()).function("fault"), Arguments([]), (1, 1, 1), (64, 1, 1)
    )
    stream = device.stream()
    fault.issue(stream)
    launch.issue(stream)
    with pytest.raises(DeviceError, match=r"hipErrorIllegalAddress .*line 7, wave 1, lane 3"):
        stream.synchronize()
    with pytest.raises(DeviceError, match="hipErrorIllegalAddress"):
        device.synchronize()


def test_ctrl_c_waits_for_the_end_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a card: the kernel ends, what comes after it stays for later, the device is whole."""
    device, library = emulated()
    launch, *_ = launched(device)
    real, asked = library.executor.launch, []

    def interrupted(*arguments: Any, **options: Any) -> None:
        if not asked:
            asked.append(True)
            signal.raise_signal(signal.SIGINT)
        real(*arguments, **options)

    monkeypatch.setattr(library.executor, "launch", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        stream = device.stream()
        launch.issue(stream)
        launch.issue(stream)
        with pytest.raises(KeyboardInterrupt):
            stream.synchronize()
        assert len(library.executor.launched) == 1
        stream.synchronize()
        assert len(library.executor.launched) == 2
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_ctrl_c_within_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no failure of the driver; but what the kernel has half done is not gone on from."""
    device, library = emulated()
    launch, *_ = launched(device)

    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(library.executor, "launch", interrupt)
    stream = device.stream()
    launch.issue(stream)
    with pytest.raises(KeyboardInterrupt):
        stream.synchronize()
    monkeypatch.undo()
    launch.issue(stream)
    with pytest.raises(DeviceError, match="Ctrl-C ended a kernel"):
        stream.synchronize()


def test_failures_can_be_injected() -> None:
    device, library = emulated()
    library.fail("hipMalloc", Status.OUT_OF_MEMORY, after=1)
    held = device.allocate(8)
    with pytest.raises(OutOfMemoryError, match="injected"):
        device.allocate(8)
    again = device.allocate(8)
    assert held.address != again.address
    library.fail("hipStreamCreateWithFlags", Status.UNKNOWN)
    with pytest.raises(DeviceError, match=r"making a stream failed: .*hipErrorUnknown \(999"):
        device.stream()
    with pytest.raises(UsageError, match="hipNothing"):
        library.fail("hipNothing", Status.UNKNOWN)


def test_a_failed_allocation_of_the_executor_is_out_of_memory() -> None:
    device, _ = emulated(capacity=1000)
    with pytest.raises(OutOfMemoryError, match="the executor is full"):
        device.allocate(2000)
