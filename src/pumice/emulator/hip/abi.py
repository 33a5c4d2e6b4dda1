"""C functions made of Python methods, so that callers pass through the C calling convention."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

P, I, U, S = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t  # noqa: E741
B, W = ctypes.c_ubyte, ctypes.c_ulonglong

# Parameters of the functions as hip_runtime_api.h declares them.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "hipInit": (U,),
    "hipDriverGetVersion": (P,),
    "hipGetDeviceCount": (P,),
    "hipDeviceGet": (P, I),
    "hipDeviceGetName": (P, I, I),
    "hipDeviceTotalMem": (P, I),
    "hipDeviceGetPCIBusId": (P, I, I),
    "hipDeviceGetAttribute": (P, I, I),
    "hipGetDevicePropertiesR0600": (P, I),
    "hipGetDeviceProperties": (P, I),
    "hipSetDevice": (I,),
    "hipDeviceSynchronize": (),
    "hipMemGetInfo": (P, P),
    "hipMalloc": (P, S),
    "hipFree": (P,),
    "hipHostMalloc": (P, S, U),
    "hipHostFree": (P,),
    "hipHostRegister": (P, S, U),
    "hipHostUnregister": (P,),
    "hipMemcpyHtoDAsync": (P, P, S, P),
    "hipMemcpyDtoHAsync": (P, P, S, P),
    "hipMemcpyDtoDAsync": (P, P, S, P),
    "hipMemsetD8Async": (P, B, S, P),
    "hipStreamCreateWithFlags": (P, U),
    "hipStreamDestroy": (P,),
    "hipStreamSynchronize": (P,),
    "hipStreamWaitEvent": (P, P, U),
    "hipEventCreateWithFlags": (P, U),
    "hipEventDestroy": (P,),
    "hipEventRecord": (P, P),
    "hipEventSynchronize": (P,),
    "hipEventQuery": (P,),
    "hipEventElapsedTime": (P, P, P),
    "hipModuleLoadData": (P, P),
    "hipModuleUnload": (P,),
    "hipModuleGetFunction": (P, P, P),
    "hipModuleGetGlobal": (P, P, P, P),
    "hipFuncGetAttribute": (P, I, P),
    "hipModuleLaunchKernel": (P, U, U, U, U, U, U, U, P, P, P),
    "hipModuleLaunchCooperativeKernel": (P, U, U, U, U, U, U, U, P, P),
    "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor": (P, P, I, S),
    "hipStreamBeginCapture": (P, I),
    "hipStreamEndCapture": (P, P),
    "hipGraphInstantiateWithFlags": (P, P, W),
    "hipGraphLaunch": (P, P),
    "hipGraphGetNodes": (P, P, P),
    "hipGraphDestroy": (P,),
    "hipGraphExecDestroy": (P,),
    "hipGetErrorName": (I,),
    "hipGetErrorString": (I,),
}
RETURNS_TEXT = frozenset({"hipGetErrorName", "hipGetErrorString"})


def c_function(name: str, method: Callable[..., int]) -> Any:
    """A C function of a method that takes and returns integers (null pointers are 0)."""
    kind = ctypes.CFUNCTYPE(P if name in RETURNS_TEXT else I, *SIGNATURES[name])

    def call(*arguments: int | None) -> int:
        return method(*(argument or 0 for argument in arguments))

    return kind(call)


def write_pointer(address: int, value: int) -> None:
    ctypes.c_void_p.from_address(address).value = value


def write_int(address: int, value: int) -> None:
    ctypes.c_int.from_address(address).value = value


def write_size(address: int, value: int) -> None:
    ctypes.c_size_t.from_address(address).value = value


def write_float(address: int, value: float) -> None:
    ctypes.c_float.from_address(address).value = value


def write_text(address: int, room: int, text: str) -> None:
    """Zero-terminated, cut to what fits."""
    raw = text.encode()[: max(0, room - 1)] + b"\0"
    ctypes.memmove(address, raw, min(room, len(raw)))


def read_text(address: int) -> str:
    return ctypes.string_at(address).decode()


def read_pointer(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0
