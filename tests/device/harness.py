"""Compiles a kernel for this machine and calls it on NumPy arrays.

Outputs are filled with NaN (integers: a marker) before the call and stand between guard bytes, so
that an element that was not written, or a byte written beyond the end, is found. Arrays are 4-byte
aligned only, as the launch convention allows.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi

from pumice.operators.base import KernelSource
from pumice.operators.quantized import GROUP, LIMIT
from pumice.targets import Target
from pumice.targets.cpu import CPU_TARGETS
from pumice.verify.judge import relative_error as relative_error

GUARD = 64  # bytes before and after an output
_GUARD_BYTE = 0xA5
_FLAGS = {
    "avx2": "avx2", "fma": "fma", "f16c": "f16c", "avx512": "avx512bw", "vnni": "avx512_vnni",
    "avxvnni": "avx_vnni", "neon": "asimd", "dotprod": "asimddp", "fp16": "asimdhp",
}  # fmt: skip


@functools.lru_cache
def host_target() -> Target:
    """The best CPU row that this machine satisfies."""
    words = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    for target in CPU_TARGETS:
        if all(_FLAGS[feature] in words for feature in target.features):
            return target
    raise RuntimeError(f"no CPU target fits this machine; known: {[t.name for t in CPU_TARGETS]}")


@functools.lru_cache
def use_threads(count: int) -> None:
    """Sets the size of TVM's thread pool: half the processors by default, and only a list of
    processors raises that."""
    share_all = -3
    processors = [str(i) for i in sorted(os.sched_getaffinity(0))[:count]]
    configure = tvm_ffi.get_global_func("runtime.config_threadpool")
    configure(share_all, len(processors), processors)
    assert tvm_ffi.get_global_func("runtime.NumThreads")() == len(processors)


def build(source: KernelSource, target: Target) -> tvm.runtime.Module:
    """A kernel's module for `target`, in memory."""
    module = tvm.IRModule({source.symbol: source.function})
    return tvm.compile(module, target=tvm.target.Target(dict(target.llvm))).mod


def assembly(source: KernelSource, target: Target) -> str:
    """A kernel's assembly for `target`, which need not be this machine."""
    return str(build(source, target).inspect_source("asm"))


class Output:
    """An array to be written: poisoned, between guards."""

    def __init__(
        self, shape: tuple[int, ...], dtype: str, initial: np.ndarray | None = None
    ) -> None:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._memory = np.full(size + 2 * GUARD, _GUARD_BYTE, np.uint8)
        self.array = self._memory[GUARD : GUARD + size].view(dtype).reshape(shape)
        if initial is not None:
            self.array[...] = initial
        else:
            self.array[...] = np.nan if np.dtype(dtype).kind == "f" else -128

    def check_guards(self, name: str) -> None:
        size = self._memory.size - 2 * GUARD
        assert (self._memory[:GUARD] == _GUARD_BYTE).all(), f"{name}: bytes before it were written"
        assert (self._memory[GUARD + size :] == _GUARD_BYTE).all(), (
            f"{name}: bytes after it were written"
        )


_BUILT: dict[tuple[str, str], tvm.runtime.Module] = {}


class Runner:
    """A compiled kernel. `runner(inputs, outputs, sizes)` writes the outputs' arrays and checks
    their guards."""

    def __init__(
        self, source: KernelSource, target: Target | None = None, threads: int = 2
    ) -> None:
        use_threads(threads)
        self.source = source
        target = target or host_target()
        key = (source.symbol, target.name)
        # Equal symbols mean equal code: that is the contract, and it saves most of the tests' time.
        if key not in _BUILT:
            _BUILT[key] = build(source, target)
        self._module = _BUILT[key]
        self.function = self._module[source.symbol]

    def bind(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, Output],
        sizes: Mapping[str, int],
    ) -> list[object]:
        """The arguments in launch order; keep what they point to alive while they are used."""
        arguments: list[object] = []
        for name in self.source.arguments:
            if name in sizes:
                arguments.append(int(sizes[name]))
                continue
            array = outputs[name].array if name in outputs else inputs[name]
            assert array.flags.c_contiguous, name
            arguments.append(ctypes.c_void_p(array.ctypes.data))
        return arguments

    def __call__(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, Output],
        sizes: Mapping[str, int],
    ) -> None:
        scratch = dict(outputs)
        if self.source.workspace is not None and "workspace" not in inputs:
            words = -(-self.source.workspace(sizes) // 4)
            scratch["workspace"] = Output((words,), "float32")
        self.function(*self.bind(inputs, scratch, sizes))
        for name, output in scratch.items():
            output.check_guards(name)


def check_quantized(
    actual: dict[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    planes: int,
    sum_group: int,
    tolerance: float,
    *,
    moved: float = 0.1,
) -> None:
    """Scales as in the reference; codes too, save where x / scale is a tie up to float32's
    rounding, which may be a share of `moved`; sums exact; every plane within −127 … 127."""
    assert relative_error(actual["x_scales"], expected["x_scales"]) <= tolerance
    codes, wanted = (_whole_codes(arrays["x_codes"], planes) for arrays in (actual, expected))
    assert np.abs(codes - wanted).max(initial=0) <= 1
    assert not codes.size or (codes != wanted).mean() <= (0.01 if planes == 1 else moved)
    assert np.abs(codes).max(initial=0) <= LIMIT[planes]
    assert actual["x_codes"].min(initial=0) >= -127
    sums = codes.reshape(*actual["x_sums"].shape, sum_group).sum(axis=2)
    np.testing.assert_array_equal(actual["x_sums"], sums)


def _whole_codes(stored: np.ndarray, planes: int) -> np.ndarray:
    rows, columns = stored.shape
    parts = stored.astype(int).reshape(rows, columns // (planes * GROUP), planes, GROUP)
    whole = parts[:, :, 0] if planes == 1 else 128 * parts[:, :, 0] + parts[:, :, 1]
    return whole.reshape(rows, columns // planes)
