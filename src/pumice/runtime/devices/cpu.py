"""The CPU as a device: memory, kernels, and a plan bound to one table that a single call
replays."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import threading
from pathlib import Path

import numpy as np

from pumice.errors import DeviceError, OutOfMemoryError, UsageError
from pumice.runtime.devices import tvm_ffi

ALIGNMENT = 64  # bytes: the compiled kernels assume it of every buffer
_ANY = np.dtype([("type", "<i4"), ("padding", "<i4"), ("value", "<i8")])  # TVMFFIAny
_INT, _POINTER = 1, 4


@functools.cache
def allowed_cpus() -> tuple[int, ...]:
    """CPU numbers that this process may use, as they were before a thread pool narrowed them."""
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except AttributeError:  # not Linux
        return tuple(range(os.cpu_count() or 1))


def physical_cpus() -> list[int]:
    """One CPU number a physical core, of those that this process may use (Linux's topology; else
    all)."""
    seen: set[str] = set()
    cores: list[int] = []
    for cpu in allowed_cpus():
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings = path.read_text().strip()
        except OSError:
            siblings = str(cpu)
        if siblings not in seen:
            seen.add(siblings)
            cores.append(cpu)
    return cores


class CpuDevice:
    """Memory is NumPy's; addresses are plain integers."""

    api = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        cores = physical_cpus()
        allowed = len(allowed_cpus())
        if threads is not None and not 1 <= threads <= allowed:
            raise UsageError(
                f"threads is {threads}; this process may use 1 to {allowed} ({len(cores)} physical "
                "cores)"
            )
        if threads is None or threads <= len(cores):
            self.cpus = cores[:threads]
        else:
            self.cpus = list(allowed_cpus()[:threads])
        self._configured = threading.local()

    @property
    def threads(self) -> int:
        return len(self.cpus)

    def allocate(self, nbytes: int) -> np.ndarray:
        """Zeroed, aligned bytes; pages are taken from the system only when they are touched."""
        try:
            region = mmap.mmap(-1, max(nbytes, mmap.PAGESIZE))
        except (OSError, ValueError, OverflowError) as error:
            raise OutOfMemoryError(f"{nbytes:,} bytes of memory cannot be had: {error}") from None
        if hasattr(mmap, "MADV_HUGEPAGE") and nbytes >= 1 << 22:
            try:
                region.madvise(mmap.MADV_HUGEPAGE)
            except OSError:  # kernels without huge pages: slower, not wrong
                pass
        return np.frombuffer(region, dtype=np.uint8, count=nbytes)

    def load_kernels(self, path: Path) -> tvm_ffi.KernelLibrary:
        return tvm_ffi.KernelLibrary(path)

    def ready(self) -> None:
        """Called before work on any thread: TVM's pool belongs to the calling thread."""
        if getattr(self._configured, "done", None) is None:
            tvm_ffi.configure_threads(self.cpus)
            self._configured.done = True


class CapturedPlan:
    """A plan's launches as one table of C structures.

    Pointers are written once. `bind` writes the integers of a batch shape where they differ;
    `replay` is one call into the
    kernel library, whose loop calls each kernel through its packed interface.
    """

    def __init__(
        self,
        library: tvm_ffi.KernelLibrary,
        symbols: list[str],
        arguments: list[list[int | None]],
    ) -> None:
        """arguments[i]: for launch i, an address for a pointer or None where `set_integers` will
        write."""
        functions = {symbol: library.function(symbol) for symbol in dict.fromkeys(symbols)}
        self._keep = functions
        self._replay = library.function("pumice_replay")
        self.symbols = symbols
        starts = np.cumsum([0] + [len(row) for row in arguments])
        self.values = np.zeros(max(1, int(starts[-1])), dtype=_ANY)
        flat = [value for row in arguments for value in row]
        self.values["type"][: len(flat)] = [_INT if v is None else _POINTER for v in flat]
        self.values["value"][: len(flat)] = [0 if v is None else v for v in flat]
        self._table = np.empty((max(1, len(symbols)), 3), dtype=np.int64)
        base = self.values.ctypes.data
        for i, (symbol, row) in enumerate(zip(symbols, arguments, strict=True)):
            self._table[i] = (functions[symbol].handle, base + int(starts[i]) * 16, len(row))
        self._failed = np.zeros(1, dtype=np.int32)
        self._scratch = np.zeros(2, dtype=np.int64)
        self._call = (tvm_ffi.Any * 4)()
        for slot, pointer in zip(
            self._call, (self._table, self._scratch, None, self._failed), strict=True
        ):
            slot.type = _INT if pointer is None else _POINTER
            slot.value = len(symbols) if pointer is None else pointer.ctypes.data
        self._result = tvm_ffi.Any()
        self._invoke = tvm_ffi._libraries()[0].TVMFFIFunctionCall
        self._invoke_arguments = (
            ctypes.c_void_p(self._replay.handle),
            ctypes.c_void_p(ctypes.addressof(self._call)),
            ctypes.c_int32(4),
            ctypes.c_void_p(ctypes.addressof(self._result)),
        )

    def set_integers(self, slots: np.ndarray, value: int) -> None:
        """Writes one integer into argument slots (indices over all launches' arguments)."""
        self.values["value"][slots] = value

    def replay(self) -> None:
        """Runs all launches; DeviceError names the kernel that failed."""
        if self._invoke(*self._invoke_arguments) != 0:
            tvm_ffi._raise("the plan's replay")
        failed = int(self._failed[0])
        if failed >= 0:
            try:
                tvm_ffi._raise(f"kernel {self.symbols[failed]!r} (launch {failed})")
            except DeviceError:
                self._failed[0] = -1
                raise

    def replay_one(self, index: int) -> None:
        """Runs one launch alone, for profiles."""
        call = (tvm_ffi.Any * 4)()
        for slot, source in zip(call, self._call, strict=True):
            slot.type, slot.value = source.type, source.value
        call[0].value = self._table.ctypes.data + index * 24
        call[2].value = 1
        result = tvm_ffi.Any()
        if (
            self._invoke(self._replay.handle, ctypes.addressof(call), 4, ctypes.addressof(result))
            or int(self._failed[0]) >= 0
        ):
            self._failed[0] = -1
            tvm_ffi._raise(f"kernel {self.symbols[index]!r}")
