"""Three small kernels whose speed bounds every other one: reading memory, int8 dot products,
float32 multiply-adds.

They go through the same code generator, library, thread pool and replay as a model's kernels, so
what they reach is what a model's
kernels could reach. `python -m pumice.bench.microkernels TARGET DIRECTORY` compiles them in a
process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pumice.errors import UnsupportedError
from pumice.operators.base import KernelSource
from pumice.targets import Target, get_target

READ, DOT, FMA = "bench_read", "bench_int8_dot", "bench_fma"
CHUNK = 1 << 16  # bytes that one task of the read kernel sums
_UNROLL = 8  # independent sums in flight, to cover the latency of loads


def chains(target: Target) -> int:
    """Independent accumulators: latency (4 to 5 cycles) × two pipes, within the register file."""
    return 16 if target.vector_bits == 512 or target.has("neon") else 12


def dot_instruction(target: Target) -> str:
    """The target's fastest instruction for products of 8-bit integers."""
    if target.has("vnni") or target.has("avxvnni"):
        return "vpdpbusd"
    if target.has("dotprod"):
        return "sdot"
    if target.has("avx2"):
        # Accumulated in 16 bits: a bound that a kernel with 4-bit codes may come near, and none can
        # pass.
        return "vpmaddubsw + vpaddw"
    raise UnsupportedError(f"no int8 dot product is known for {target.name}")


def dot_dtype(target: Target) -> str:
    """The element type of the dot kernel's accumulators."""
    return "int16" if dot_instruction(target).startswith("vpmaddubsw") else "int32"


def read_kernel(target: Target) -> KernelSource:
    """out[task, lane] = sum of every lanes-th int32 of the task's CHUNK bytes, modulo 2³²."""
    from tvm.tirx.script.builder import ir as T

    from pumice.operators.tir.builder import SIZE, kernel, tasks
    from pumice.operators.tir.vector import load, splat_int, store

    lanes = target.lanes
    with kernel(READ, {"x": "int32", "out": "int32", "tasks": SIZE}) as k:
        with tasks(k["tasks"], parallel=True) as task:
            sums = T.alloc_buffer((_UNROLL * lanes,), "int32", scope="local")
            for u in range(_UNROLL):
                store(sums, u * lanes, splat_int(0, lanes), lanes)
            with T.serial(0, CHUNK // 4 // (_UNROLL * lanes)) as step:
                for u in range(_UNROLL):
                    where = task * (CHUNK // 4) + (step * _UNROLL + u) * lanes
                    total = load(sums, u * lanes, lanes) + load(k["x"], where, lanes)
                    store(sums, u * lanes, total, lanes)
            total = load(sums, 0, lanes)
            for u in range(1, _UNROLL):
                total = total + load(sums, u * lanes, lanes)
            store(k["out"], task * lanes, total, lanes)
    return k.source()


def _dot(target: Target, acc: Any) -> Any:
    """acc + bytes(acc) · 1, with the target's instruction: every step depends on the one before,
    so none can be left out.
    """
    import tvm.tirx as tir
    from tvm.tirx.script.builder import ir as T

    from pumice.operators.tir.vector import splat_int

    bits, lanes = target.vector_bits, target.lanes
    ones = splat_int(1, bits // 8, "int8")
    match dot_instruction(target):
        case "vpdpbusd":
            name = f"llvm.x86.avx512.vpdpbusd.{bits}"
            data = T.reinterpret(f"uint8x{bits // 8}", acc)
            return T.call_llvm_pure_intrin(f"int32x{lanes}", name, acc, data, ones)
        case "sdot":
            data = T.reinterpret("int8x16", acc)
            name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
            return T.call_llvm_pure_intrin("int32x4", name, acc, data, ones)
    data = T.reinterpret(f"uint8x{bits // 8}", acc)
    name = "llvm.x86.avx2.pmadd.ub.sw"
    product: tir.PrimExpr = T.call_llvm_pure_intrin(f"int16x{bits // 16}", name, data, ones)
    return acc + product


def dot_kernel(target: Target) -> KernelSource:
    """out[task, chain, lane]: accumulators after `steps` dot products of their own bytes with
    ones; they start at 1 + chain.
    """
    from pumice.operators.tir.vector import splat_int

    dtype = dot_dtype(target)
    lanes = target.vector_bits // (16 if dtype == "int16" else 32)
    return _register_kernel(
        DOT,
        target,
        dtype,
        lanes,
        lambda c: splat_int(1 + c, lanes, dtype),
        lambda a: _dot(target, a),
    )


def fma_kernel(target: Target) -> KernelSource:
    """out[task, chain, lane]: accumulators after `steps` times a ← a/2 + 1; they start at 3 +
    chain.
    """
    from tvm.tirx.script.builder import ir as T

    from pumice.operators.tir.vector import splat

    lanes = target.lanes
    half, one = splat(0.5, lanes), splat(1.0, lanes)
    return _register_kernel(
        FMA,
        target,
        "float32",
        lanes,
        lambda c: splat(3.0 + c, lanes),
        lambda a: T.fma(a, half, one),
    )


def _register_kernel(
    symbol: str, target: Target, dtype: str, lanes: int, start: Any, advance: Any
) -> KernelSource:
    """`steps` rounds over accumulators that never leave the registers."""
    from tvm.tirx.script.builder import ir as T

    from pumice.operators.tir.builder import SIZE, kernel, tasks
    from pumice.operators.tir.vector import load, store

    count = chains(target)
    with kernel(symbol, {"out": dtype, "tasks": SIZE, "steps": SIZE}) as k:
        with tasks(k["tasks"], parallel=True) as task:
            acc = T.alloc_buffer((count * lanes,), dtype, scope="local")
            for c in range(count):
                store(acc, c * lanes, start(c), lanes)
            with T.serial(0, k["steps"]):
                for c in range(count):
                    store(acc, c * lanes, advance(load(acc, c * lanes, lanes)), lanes)
            for c in range(count):
                store(k["out"], (task * count + c) * lanes, load(acc, c * lanes, lanes), lanes)
    return k.source()


def build(target: Target, directory: Path) -> None:
    """Compiles the three kernels into `directory`/model.so."""
    from pumice.compiler.codegen import build_library

    sources = [read_kernel(target), dot_kernel(target), fma_kernel(target)]
    build_library(sources, target, directory / "model.so", workers=1)


if __name__ == "__main__":
    build(get_target(sys.argv[1]), Path(sys.argv[2]))
