"""What this machine can do at most with a given number of threads: the roofline.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model", 2009:
work that reads b bytes and does
n operations takes at least max(b / bandwidth, n / peak) seconds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pumice.bench import microkernels
from pumice.errors import CompileError, DeviceError
from pumice.files import atomic_directory, locked
from pumice.runtime.devices.cpu import CapturedPlan, CpuDevice
from pumice.runtime.devices.tvm_ffi import KernelLibrary
from pumice.runtime.memory import available_bytes
from pumice.targets import Target

_MIN_BUFFER = 256 << 20  # bytes
_SECONDS = 0.6  # spent on each of the three figures
_STEPS = 2000  # rounds of a register kernel in one task


@dataclass(frozen=True)
class Roofline:
    """Measured on this machine, in this run, with `threads` threads."""

    target: str
    threads: int
    read_bytes_per_s: float  # a buffer much larger than the last cache
    int8_ops_per_s: float  # a multiply-add is two operations
    fp32_ops_per_s: float
    int8_instruction: str

    def seconds(self, nbytes: float, operations: float, *, int8: bool = True) -> float:
        """The least time that reading `nbytes` and doing `operations` can take."""
        peak = self.int8_ops_per_s if int8 else self.fp32_ops_per_s
        return max(nbytes / self.read_bytes_per_s, operations / peak)

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def last_cache_bytes() -> int:
    """Size of the largest cache of CPU 0 (Linux); 32 MiB when the system does not tell."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KMG")) * unit)
    return max(sizes, default=32 << 20)


def buffer_bytes() -> int:
    """Bytes of the buffer that is read: 8 times the last cache, at least 256 MiB, at most a
    quarter of the free memory.
    """
    size = max(_MIN_BUFFER, 8 * last_cache_bytes())
    free = available_bytes()
    if free is not None:
        size = min(size, free // 4)
    return max(microkernels.CHUNK, size // microkernels.CHUNK * microkernels.CHUNK)


def kernels(target: Target, cache_dir: Path) -> Path:
    """The directory of the compiled kernels; they are compiled by a child process when the cache
    has none.
    """
    key = hashlib.sha256(Path(microkernels.__file__).read_bytes()).hexdigest()[:16]
    final = cache_dir / "bench" / f"{target.name}-{key}"
    if (final / "model.so").is_file():
        return final
    with locked(cache_dir / "locks" / f"bench-{final.name}.lock"):
        if not (final / "model.so").is_file():
            with atomic_directory(final) as work:
                command = [sys.executable, "-m", microkernels.__name__, target.name, str(work)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode != 0:
                    raise CompileError(
                        f"the benchmark's own kernels do not compile: {done.stderr.strip()[-2000:]}"
                    )
    return final


def measure(target: Target, *, cache_dir: Path, threads: int | None = None) -> Roofline:
    """Measures read bandwidth, int8 and float32 peaks; the best of several passes each.

    DeviceError when the read kernel's checksum is wrong.
    """
    device = CpuDevice(threads)
    device.ready()
    library = device.load_kernels(kernels(target, cache_dir) / "model.so")
    lanes, chains = target.lanes, microkernels.chains(target)
    per_step = chains * lanes * 2 * device.threads * _STEPS  # float32 operations of one call
    return Roofline(
        target=target.name,
        threads=device.threads,
        read_bytes_per_s=_read(device, library, lanes),
        int8_ops_per_s=4 * per_step / _register_seconds(device, library, microkernels.DOT, target),
        fp32_ops_per_s=per_step / _register_seconds(device, library, microkernels.FMA, target),
        int8_instruction=microkernels.dot_instruction(target),
    )


def _read(device: CpuDevice, library: KernelLibrary, lanes: int) -> float:
    size = buffer_bytes()
    tasks = size // microkernels.CHUNK
    data = device.allocate(size).view(np.int32)
    data[:] = 3  # every page must be there before it is timed
    data[:: 1 << 14] = np.arange(tasks, dtype=np.int32)  # one element of each task
    out = device.allocate(tasks * lanes * 4).view(np.int32)
    plan = CapturedPlan(library, [microkernels.READ], [[data.ctypes.data, out.ctypes.data, None]])
    plan.set_integers(np.array([2]), tasks)
    best = _best(plan.replay)
    expected = int(data.sum(dtype=np.int64)) & 0xFFFFFFFF
    if int(out.sum(dtype=np.int64)) & 0xFFFFFFFF != expected:
        raise DeviceError("the memory read kernel returned a wrong sum")
    return size / best


def _register_seconds(
    device: CpuDevice, library: KernelLibrary, symbol: str, target: Target
) -> float:
    nbytes = device.threads * microkernels.chains(target) * target.vector_bits // 8
    out = device.allocate(nbytes)
    plan = CapturedPlan(library, [symbol], [[out.ctypes.data, None, None]])
    plan.set_integers(np.array([1]), device.threads)
    plan.set_integers(np.array([2]), _STEPS)
    return _best(plan.replay)


def _best(work: Callable[[], None]) -> float:
    """The shortest time of one call, over about _SECONDS of calls."""
    work()
    best, end = float("inf"), time.perf_counter() + _SECONDS
    while (start := time.perf_counter()) < end:
        work()
        best = min(best, time.perf_counter() - start)
    return best
