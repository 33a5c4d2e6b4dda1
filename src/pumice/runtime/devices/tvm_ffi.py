"""TVM's runtime library through ctypes, without importing TVM.

`import tvm` costs 0.3 s and, where PyTorch is installed, several seconds more. Running compiled
kernels needs only two small
shared libraries of the wheel (libtvm_ffi, libtvm_runtime) and their C interface (tvm/ffi/c_api.h),
so they are opened directly.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from pumice.errors import ArtifactError, DeviceError

# tvm/ffi/c_api.h: TVMFFITypeIndex
_NONE, _INT, _POINTER, _RAW_STRING, _OBJECT = 0, 1, 4, 8, 64
_SHARE_ALL_CORES = -3  # threading_backend.h: AffinityMode::kSpecifyThreadShareAllCore


class Any(ctypes.Structure):
    """TVMFFIAny: a type index and eight bytes of value."""

    _fields_ = (("type", ctypes.c_int32), ("padding", ctypes.c_uint32), ("value", ctypes.c_int64))


class _Bytes(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _ErrorCell(ctypes.Structure):
    # TVMFFIObject's header (24 bytes), then kind and message
    _fields_ = (("header", ctypes.c_byte * 24), ("kind", _Bytes), ("message", _Bytes))


def _library_path(package: str, name: str) -> Path:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for suffix in (".so", ".dylib"):
            path = Path(folder) / "lib" / f"{name}{suffix}"
            if path.exists():
                return path
    raise DeviceError(
        f"TVM's library {name} was not found in the package {package!r}",
        hint="Install it again with `pip install apache-tvm`.",
    )


@functools.cache
def _libraries() -> tuple[ctypes.CDLL, ctypes.CDLL]:
    try:
        ffi = ctypes.CDLL(str(_library_path("tvm_ffi", "libtvm_ffi")), ctypes.RTLD_GLOBAL)
        runtime = ctypes.CDLL(str(_library_path("tvm", "libtvm_runtime")), ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise DeviceError(f"TVM's runtime library cannot be loaded: {error}") from None
    ffi.TVMFFIFunctionGetGlobal.argtypes = (ctypes.POINTER(_Bytes), ctypes.POINTER(ctypes.c_void_p))
    ffi.TVMFFIFunctionCall.argtypes = (
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p
    )  # fmt: skip
    ffi.TVMFFIErrorMoveFromRaised.argtypes = (ctypes.POINTER(ctypes.c_void_p),)
    ffi.TVMFFIErrorMoveFromRaised.restype = None
    ffi.TVMFFIObjectDecRef.argtypes = (ctypes.c_void_p,)
    return ffi, runtime


def _raise(what: str) -> None:
    ffi, _ = _libraries()
    handle = ctypes.c_void_p()
    ffi.TVMFFIErrorMoveFromRaised(ctypes.byref(handle))
    text = "no message"
    if handle.value:
        cell = _ErrorCell.from_address(handle.value)
        text = ctypes.string_at(cell.message.data, cell.message.size).decode(errors="replace")
        ffi.TVMFFIObjectDecRef(handle)
    raise DeviceError(f"{what} failed: {text}")


class FfiObject:
    """An owned reference to an object of TVM's; released when Python drops it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __del__(self) -> None:
        libraries = _libraries
        if libraries is not None and self.handle:
            libraries()[0].TVMFFIObjectDecRef(self.handle)


def call(function: FfiObject, *arguments: int | str | FfiObject | None) -> int | FfiObject | None:
    """Calls a packed function with integers, strings and objects; returns its value."""
    ffi, _ = _libraries()
    packed = (Any * max(1, len(arguments)))()
    keep = []  # strings must outlive the call
    for slot, argument in zip(packed, arguments, strict=False):
        if argument is None:
            slot.type = _NONE
        elif isinstance(argument, FfiObject):
            slot.type = ctypes.c_int32.from_address(argument.handle + 8).value
            slot.value = argument.handle
        elif isinstance(argument, str):
            text = ctypes.create_string_buffer(argument.encode())
            keep.append(text)
            slot.type, slot.value = _RAW_STRING, ctypes.addressof(text)
        else:
            slot.type, slot.value = _INT, int(argument)
    result = Any()
    status = ffi.TVMFFIFunctionCall(
        function.handle, ctypes.addressof(packed), len(arguments), ctypes.addressof(result)
    )
    if status != 0:
        _raise("a call of TVM's runtime")
    if result.type >= _OBJECT:
        return FfiObject(result.value)
    return None if result.type == _NONE else int(result.value)


@functools.cache
def global_function(name: str) -> FfiObject:
    """A function that TVM registered under a name."""
    ffi, _ = _libraries()
    text = name.encode()
    buffer = ctypes.create_string_buffer(text)
    view = _Bytes(ctypes.addressof(buffer), len(text))
    handle = ctypes.c_void_p()
    if ffi.TVMFFIFunctionGetGlobal(ctypes.byref(view), ctypes.byref(handle)) != 0:
        _raise(f"looking up {name}")
    if not handle.value:
        raise DeviceError(
            f"TVM's runtime has no function {name!r}",
            hint="This version of apache-tvm is not one that Pumice supports (0.27).",
        )
    return FfiObject(handle.value)


def configure_threads(cpus: Iterable[int]) -> None:
    """Gives the calling thread's pool one worker a CPU of `cpus`, free to move among them.

    TVM keeps a pool *per calling thread*; without this call a pool takes half of the CPUs that the
    system reports, which on a
    virtual machine without hyper-threads is too few.
    """
    names = [str(cpu) for cpu in cpus]
    array = call(global_function("ffi.Array"), *names)
    call(global_function("runtime.config_threadpool"), _SHARE_ALL_CORES, len(names), array)


class KernelLibrary:
    """A compiled `model.so`: its functions by symbol."""

    def __init__(self, path: Path) -> None:
        try:
            module = call(global_function("ffi.ModuleLoadFromFile"), str(path))
        except DeviceError as error:
            raise ArtifactError(
                f"{path} cannot be loaded: {error.message}",
                hint="Compile the model again: pumice compile MODEL --rebuild",
            ) from None
        assert isinstance(module, FfiObject)
        self._module = module

    def function(self, symbol: str) -> FfiObject:
        """The packed function of a kernel; DeviceError when the library has none of that name."""
        found = call(global_function("ffi.ModuleGetFunction"), self._module, symbol, 0)
        if not isinstance(found, FfiObject):
            raise DeviceError(f"the kernel library has no function {symbol!r}")
        return found
