"""The emulated libamdhip64's C functions, called as a C program would call them."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
from driver_fakes import ScriptedExecutor, image

from pumice.emulator.hip.abi import SIGNATURES
from pumice.emulator.hip.cards import card
from pumice.emulator.hip.library import HipLibrary
from pumice.emulator.hip.status import Status


@pytest.fixture
def hip() -> HipLibrary:
    return HipLibrary(card("gfx1100"), ScriptedExecutor())


def allocated(hip: HipLibrary, nbytes: int) -> int:
    out = ctypes.c_void_p()
    assert hip.hipMalloc(ctypes.byref(out), nbytes) == 0
    assert out.value
    return out.value


def test_every_function_is_there(hip: HipLibrary) -> None:
    for name in SIGNATURES:
        assert callable(getattr(hip, name))
    with pytest.raises(AttributeError, match="hipTexture"):
        hip.hipTexture  # noqa: B018


@pytest.mark.parametrize("status", list(Status))
def test_error_names_and_texts(hip: HipLibrary, status: Status) -> None:
    name = hip.hipGetErrorName
    name.restype = ctypes.c_char_p
    text = hip.hipGetErrorString
    text.restype = ctypes.c_char_p
    assert name(status).decode() == status.hip_name
    assert status.hip_name.startswith("hip") and text(status).decode() == status.text
    assert name(12345) == b"hipErrorUnknown"


def test_a_launch_with_an_array_of_pointers(hip: HipLibrary) -> None:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert hip.hipModuleLoadData(ctypes.byref(module), ctypes.c_char_p(image())) == 0
    assert hip.hipModuleGetFunction(ctypes.byref(function), module, b"axpy") == 0
    x, y = allocated(hip, 40), allocated(hip, 40)
    values = np.arange(10, dtype=np.float32)
    for address in (x, y):
        assert hip.hipMemcpyHtoDAsync(address, values.ctypes.data, 40, None) == 0
    arguments = [
        ctypes.c_int(10), ctypes.c_float(2), ctypes.c_void_p(x), ctypes.c_void_p(y),
    ]  # fmt: skip
    pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(a) for a in arguments))
    status = hip.hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, None, pointers, None)
    assert status == 0
    out = np.empty(10, np.float32)
    assert hip.hipMemcpyDtoHAsync(out.ctypes.data, y, 40, None) == 0
    np.testing.assert_array_equal(out, 3 * values)
    nothing = hip.hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, None, None, None)
    assert nothing == Status.INVALID_VALUE and "takes arguments" in (hip.explain() or "")
    assert hip.hipModuleUnload(module) == 0
    assert hip.hipModuleUnload(module) == Status.INVALID_HANDLE


def test_registered_host_memory_is_pinned(hip: HipLibrary) -> None:
    host = np.zeros(64, np.uint8)
    address = allocated(hip, 64)
    assert hip.hipHostRegister(host.ctypes.data, 64, 0) == 0
    assert hip.hipMemsetD8Async(address, 5, 64, None) == 0
    assert hip.hipMemcpyDtoHAsync(host.ctypes.data, address, 64, None) == 0
    assert not host.any()  # not before somebody waits
    assert hip.hipDeviceSynchronize() == 0
    assert (host == 5).all()
    assert hip.hipHostUnregister(host.ctypes.data) == 0
    assert hip.hipHostUnregister(host.ctypes.data) == Status.INVALID_VALUE


@pytest.mark.parametrize(
    ("name", "arguments", "status"),
    [
        ("hipInit", (1,), Status.INVALID_VALUE),
        ("hipSetDevice", (1,), Status.INVALID_DEVICE),
        ("hipFree", (None,), Status.SUCCESS),
        ("hipFree", (0x1234,), Status.INVALID_VALUE),
        ("hipHostFree", (0x1234,), Status.INVALID_VALUE),
        ("hipStreamDestroy", (0x1234,), Status.INVALID_HANDLE),
        ("hipStreamBeginCapture", (None, 0), Status.STREAM_CAPTURE_UNSUPPORTED),
        ("hipStreamEndCapture", (None, None), Status.INVALID_VALUE),
        ("hipMemsetD8Async", (0x1234, 0, 1, None), Status.INVALID_VALUE),
    ],
)
def test_misuse(
    hip: HipLibrary, name: str, arguments: tuple[int | None, ...], status: Status
) -> None:
    assert getattr(hip, name)(*arguments) == status


def test_an_attribute_that_is_not_emulated_says_so(hip: HipLibrary) -> None:
    out = ctypes.c_int()
    status = hip.hipDeviceGetAttribute(ctypes.byref(out), 9999, 0)
    assert status == Status.INVALID_VALUE and "9999" in (hip.explain() or "")
    assert hip.explain() is None  # once


def test_threads_take_turns(hip: HipLibrary) -> None:
    addresses: list[int] = []

    def work() -> None:
        for _ in range(50):
            addresses.append(allocated(hip, 8))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(addresses)) == 200 and hip.used == 1600
