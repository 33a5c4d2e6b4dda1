"""Reference kernels in Triton, compiled for AMD GPUs that need not be there, and their launch."""

from __future__ import annotations

import faulthandler
import functools
import importlib
import multiprocessing
import tempfile
from collections.abc import Sequence

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pumice.emulator.emulator import Emulator
from pumice.emulator.report import LaunchReport

ARCHS = ("gfx1100", "gfx942", "gfx1201", "gfx90a", "gfx950", "gfx1151")
MAIN_ARCHS = ARCHS[:3]


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(out + o, tl.load(x + o, mask=m) + tl.load(y + o, mask=m), mask=m)


@triton.jit
def vector_add_without_mask(x, y, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n + 1
    tl.store(out + o, tl.load(x + o, mask=m) + tl.load(y + o, mask=m), mask=m)


@triton.jit
def softmax(x, out, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    m = o < n
    v = tl.load(x + row * stride + o, mask=m, other=-float("inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * stride + o, v / tl.sum(v, 0), mask=m)


@triton.jit
def matmul(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr
):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), ACC)
    for k in range(0, K, BK):
        mk = k + rk < K
        left = tl.load(
            a + rm[:, None] * K + (k + rk)[None, :], mask=(rm < M)[:, None] & mk[None, :], other=0.0
        )
        right = tl.load(
            b + (k + rk)[:, None] * N + rn[None, :], mask=(rn < N)[None, :] & mk[:, None], other=0.0
        )
        acc = tl.dot(left, right, acc, out_dtype=ACC)
    inside = (rm < M)[:, None] & (rn < N)[None, :]
    tl.store(c + rm[:, None] * N + rn[None, :], acc, mask=inside)


@triton.jit
def row_sums(x, sums, highest, where, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    for start in range(0, n, BLOCK):
        o = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + o, mask=o < n, other=0.0)
        total += v
        best = tl.maximum(best, tl.where(o < n, v, -float("inf")))
    tl.store(sums + row, tl.sum(total, 0))
    tl.store(highest + row, tl.max(best, 0))
    o = tl.arange(0, BLOCK)
    first = tl.load(x + row * stride + o, mask=o < n, other=-float("inf"))
    tl.store(where + row, tl.argmax(first, 0))


@triton.jit
def scan(x, sums, products, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + tl.program_id(0) * n + o, mask=o < n, other=0.0)
    tl.store(sums + tl.program_id(0) * n + o, tl.cumsum(v, 0), mask=o < n)
    tl.store(products + tl.program_id(0) * n + o, tl.cumprod(1.0 + v * 0.01, 0), mask=o < n)


@triton.jit
def atomics(x, total, highest, counts, old, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    v = tl.load(x + o, mask=m, other=0)
    tl.atomic_add(total + (v % 4), v.to(tl.float32), mask=m)
    tl.atomic_max(highest + (o - o), v, mask=m)
    before = tl.atomic_add(counts + (v % BINS), 1, mask=m)
    tl.store(old + o, before, mask=m)


@triton.jit
def attention(
    q, k, v, out, queries, keys, scale, D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr
):
    rq = tl.program_id(0) * BQ + tl.arange(0, BQ)
    head = tl.program_id(1)
    d = tl.arange(0, D)
    mq = (rq < queries)[:, None]
    query = tl.load(q + head * queries * D + rq[:, None] * D + d[None, :], mask=mq, other=0.0)
    best = tl.full((BQ,), -float("inf"), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    acc = tl.zeros((BQ, D), tl.float32)
    for start in range(0, keys, BK):
        rk = start + tl.arange(0, BK)
        key = tl.load(
            k + head * keys * D + rk[None, :] * D + d[:, None],
            mask=(rk < keys)[None, :],
            other=0.0,
        )
        score = tl.dot(query, key) * scale
        score = tl.where((rk < keys)[None, :] & (rk[None, :] <= rq[:, None]), score, -1e30)
        new = tl.maximum(best, tl.max(score, 1))
        p = tl.exp(score - new[:, None])
        keep = tl.exp(best - new)
        total = total * keep + tl.sum(p, 1)
        value = tl.load(
            v + head * keys * D + rk[:, None] * D + d[None, :],
            mask=(rk < keys)[:, None],
            other=0.0,
        )
        acc = acc * keep[:, None] + tl.dot(p.to(tl.float16), value)
        best = new
    tl.store(out + head * queries * D + rq[:, None] * D + d[None, :], acc / total[:, None], mask=mq)


@triton.jit
def elementwise(x, y, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    a = tl.load(x + o, mask=m, other=1.0)
    b = tl.load(y + o, mask=m, other=1.0)
    r = tl.sigmoid(a) * b + tl.sqrt(tl.abs(a)) / (b * b + 1.0) + tl.exp2(-tl.abs(b))
    r += tl.sin(a) + tl.log(tl.abs(b) + 1.0) + tl.floor(a) + tl.rsqrt(b * b + 0.5)
    i = o.to(tl.int64) * 2654435761 % 1000003
    r += (i // 7 % 13).to(tl.float32) + tl.clamp(a, -0.5, 0.5) + tl.fma(a, b, 1.0)
    tl.store(out + o, tl.where(a > b, r, -r), mask=m)


def _compile(
    fn: triton.JITFunction,
    arch: str,
    signature: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, object], ...],
    options: tuple[tuple[str, object], ...],
) -> triton.compiler.CompiledKernel:
    return triton.compile(
        ASTSource(fn, dict(signature), dict(constants)),
        target=GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32),
        options=dict(options),
    )


@functools.cache
def compiled(
    fn: triton.JITFunction,
    arch: str,
    signature: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, object], ...],
    options: tuple[tuple[str, object], ...] = (),
) -> triton.compiler.CompiledKernel:
    """A kernel compiled with line numbers; `.asm["hsaco"]` holds the code object's bytes."""

    with tempfile.TemporaryDirectory() as cache, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", cache)
        patch.setenv("TRITON_DISABLE_LINE_INFO", "0")
        if any("fp8" in kind for _, kind in signature):
            name = fn.fn.__name__
            _compile_apart(fn.fn.__module__, name, arch, signature, constants, options)
        return _compile(fn, arch, signature, constants, options)  # what is in the cache now


def _compile_apart(module: str, name: str, *how: object, times: int = 8) -> None:
    """Leaves a kernel in the cache from a process of its own, and from a new one where that dies:
    LLVM aborts in some of them over 8-bit floats, and which ones depends on where memory lies. An
    error is raised where the caller compiles it once more."""
    for _ in range(times):
        child = multiprocessing.get_context("spawn").Process(
            target=_compile_here, args=(module, name, *how)
        )
        child.start()
        child.join()
        if child.exitcode is not None and child.exitcode >= 0:
            return
    raise RuntimeError(f"the process that compiled {name} ended by a signal, {times} times")


def _compile_here(module: str, name: str, *how: object) -> None:
    faulthandler.disable()
    fn = getattr(importlib.import_module(module), name)
    _compile(fn, *how)


_TYPES = {
    "float32": "*fp32", "float16": "*fp16", "bfloat16": "*bf16", "int8": "*i8", "int32": "*i32",
    "float8_e4m3fn": "*fp8e4nv", "float8_e4m3fnuz": "*fp8e4b8", "float8_e5m2": "*fp8e5",
    "uint8": "*u8", "int64": "*i64",
}  # fmt: skip


def launch(
    fn: triton.JITFunction,
    arch: str,
    grid: Sequence[int],
    arguments: Sequence[np.ndarray | int | float],
    constants: dict[str, object],
    *,
    sanitize: bool = True,
    sample: int | None = None,
    **options: object,
) -> LaunchReport:
    """Compile, run on the emulated GPU, and copy the arrays back in place.

    Arrays become device memory of exactly their size; ints and floats become scalars.
    """
    names = [name for name in fn.arg_names if name not in constants]
    signature = {}
    for name, value in zip(names, arguments, strict=True):
        if isinstance(value, np.ndarray):
            signature[name] = _TYPES[value.dtype.name]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    done = compiled(
        fn, arch, tuple(signature.items()), tuple(constants.items()), tuple(sorted(options.items()))
    )
    gpu = Emulator(arch, capacity=1 << 28)
    gpu.load(done.asm["hsaco"])
    values = [gpu.upload(a) if isinstance(a, np.ndarray) else a for a in arguments]
    wave = 64 if arch.startswith("gfx9") else 32
    report = gpu.launch(
        done.metadata.name, grid, (wave * done.metadata.num_warps,), values,
        lds_bytes=done.metadata.shared, sanitize=sanitize, sample=sample,
    )  # fmt: skip
    for address, array in zip(values, arguments, strict=True):
        if isinstance(array, np.ndarray):
            array[...] = gpu.download(address, array.shape, array.dtype)
    return report
