"""Times the linear operator's kernels on this machine: decode against the read bandwidth, prefill
against the int8 peak, both measured here, in the same alternating loop.

`python -m pumice.bench.linear [--threads N] [--planes 1|2] [--model smollm2-135m|llama-2-7b]`
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pumice.bench import microkernels
from pumice.operators.base import KernelSource, OperatorCall
from pumice.runtime.devices.cpu import CapturedPlan, CpuDevice
from pumice.runtime.devices.tvm_ffi import KernelLibrary
from pumice.targets import Target

# outputs × inputs × format of each matmul of a token
SHAPES: dict[str, tuple[tuple[int, int, str], ...]] = {
    "smollm2-135m": (
        (960, 576, "q4_1"), (576, 576, "q4_1"), (3072, 576, "q4_1"), (576, 1536, "q4_1"),
        (49152, 576, "q8_0"),
    ),
    "llama-2-7b": (
        (12288, 4096, "q4f16_1"), (4096, 4096, "q4f16_1"), (22016, 4096, "q4f16_1"),
        (4096, 11008, "q4f16_1"), (32000, 4096, "q4f16_1"),
    ),
}  # fmt: skip
_READ_BYTES = 1 << 28
_COLD_BYTES = 1 << 26  # copies of a small weight, so that no call finds its weight in a cache
_STEPS = 100_000
_ROUNDS = 9


@dataclass
class Bench:
    """Compiled kernels and memory of one run."""

    target: Target
    device: CpuDevice
    planes: int
    folder: Path

    def library(self, sources: list[KernelSource]) -> KernelLibrary:
        from pumice.compiler.codegen import build_library

        folder = Path(tempfile.mkdtemp(dir=self.folder))
        build_library(sources, self.target, folder / "model.so", workers=self.device.threads)
        return self.device.load_kernels(folder / "model.so")

    def random(self, nbytes: int) -> np.ndarray:
        """Bytes below 0x3C, so that every pair of them is a finite float16."""
        memory = self.device.allocate(max(nbytes, 64))
        memory[:] = np.resize(np.random.default_rng(0).integers(0, 60, 1 << 16), len(memory))
        return memory

    def source(self, n: int, k: int, name: str) -> KernelSource:
        from pumice.operators.linear import layout_for
        from pumice.operators.linear.kernel_tir_int8 import LinearInt8
        from pumice.quantization import get_format

        fmt = get_format(name)
        attrs = {"N": n, "K": k, "bias": False, "residual": False, "planes": self.planes}
        call = OperatorCall(
            "linear", {**attrs, "activations": "int8"}, {"w": (fmt, layout_for(self.target, fmt))}
        )
        kernel = LinearInt8()
        return kernel.source(call, self.target, kernel.configs(call, self.target)[0])

    def calls(
        self, library: KernelLibrary, source: KernelSource, n: int, k: int, tokens: int, name: str
    ) -> tuple[Callable[[], None], int, int]:
        """(one pass over all copies of the weight, copies, bytes of one)."""
        from pumice.operators.linear import layout_for
        from pumice.quantization import get_format

        fmt = get_format(name)
        rows = layout_for(self.target, fmt).padded(n)
        scales = rows * k // fmt.group * (2 if fmt.scale_dtype == "float16" else 4)
        sizes = {"w.codes": rows * k * fmt.code_bits // 8, "w.scales": scales, "w.mins": scales}
        weight = sum(size for arg, size in sizes.items() if arg in source.arguments)
        copies = max(1, _COLD_BYTES // weight) if tokens == 1 else 1
        padded = -(-tokens // 8) * 8
        shared = {
            "x_codes": self.random(padded * k * self.planes),
            "x_scales": self.random(padded * k // 8),
            "x_sums": self.random(padded * k // 8),
            "out": self.device.allocate(padded * n * 4),
        }
        keep = [
            {**shared, **{arg: self.random(size) for arg, size in sizes.items()}}
            for _ in range(copies)
        ]
        integers = {"T": tokens, "N": n, "K": k}
        table = [
            [None if a in integers else int(buffers[a].ctypes.data) for a in source.arguments]
            for buffers in keep
        ]
        plan = CapturedPlan(library, [source.symbol] * copies, table)
        width = len(source.arguments)
        for index, argument in enumerate(source.arguments):
            if argument in integers:
                plan.set_integers(np.arange(copies) * width + index, integers[argument])

        def run() -> None:
            plan.replay()
            assert keep  # the addresses in the plan are those of these arrays

        return run, copies, weight


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _ceilings(bench: Bench) -> tuple[Callable[[], None], Callable[[], None], float]:
    """(read pass of _READ_BYTES, int8 pass, multiply-adds of the int8 pass)."""
    target, threads = bench.target, bench.device.threads
    library = bench.library([microkernels.read_kernel(target), microkernels.dot_kernel(target)])
    data, tasks = bench.random(_READ_BYTES), _READ_BYTES // microkernels.CHUNK
    sums = bench.device.allocate(tasks * target.lanes * 4)
    read = CapturedPlan(
        library, [microkernels.READ], [[int(data.ctypes.data), int(sums.ctypes.data), None]]
    )
    read.set_integers(np.array([2]), tasks)
    nbytes = microkernels.chains(target) * target.vector_bits // 8
    out = bench.device.allocate(threads * nbytes)
    dot = CapturedPlan(library, [microkernels.DOT], [[int(out.ctypes.data), None, None]])
    dot.set_integers(np.array([1]), threads)
    dot.set_integers(np.array([2]), _STEPS)

    def reading() -> None:
        read.replay()
        assert data is not None and sums is not None

    def dots() -> None:
        dot.replay()
        assert out is not None

    return reading, dots, float(threads * nbytes * _STEPS)


def run(bench: Bench, model: str, tokens: int) -> None:
    """Prints a row a shape: median speed, and the median of its ratio to the ceiling beside it."""
    reading, dots, products = _ceilings(bench)
    made: dict[str, tuple[KernelSource, KernelLibrary]] = {}
    print(f"{bench.target.name}, {bench.device.threads} threads, {bench.planes} planes")
    for n, k, name in SHAPES[model]:
        if name not in made:
            source = bench.source(n, k, name)
            made[name] = (source, bench.library([source]))
        source, library = made[name]
        one, copies, weight = bench.calls(library, source, n, k, 1, name)
        many, _, _ = bench.calls(library, source, n, k, tokens, name)
        one(), many(), reading(), dots()
        rows = []
        for _ in range(_ROUNDS):
            bandwidth = _READ_BYTES / _seconds(reading)
            decode = copies * weight / _seconds(one)
            peak = products / _seconds(dots)
            prefill = tokens * n * k * bench.planes / _seconds(many)
            rows.append((decode, decode / bandwidth, prefill, prefill / peak))
        d, d_ratio, p, p_ratio = np.median(np.array(rows), axis=0)
        print(
            f"{name:8} {n:6}x{k:<6} decode {d / 1e9:6.1f} GB/s {d_ratio:5.0%} of read   "
            f"T={tokens} {p / bench.planes / 1e9:6.1f} GMAC/s, {p_ratio:4.0%} of the int8 peak",
            flush=True,
        )


def main() -> None:
    from pumice.targets.detect import detect_cpu

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--planes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--model", choices=tuple(SHAPES), default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=512)
    given = parser.parse_args()
    device = CpuDevice(given.threads)
    device.ready()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(detect_cpu(), device, given.planes, Path(folder))
        run(bench, given.model, given.tokens)


if __name__ == "__main__":
    main()
