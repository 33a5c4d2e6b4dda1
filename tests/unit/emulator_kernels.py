"""Reference kernels in Triton, compiled for AMD GPUs that need not be there."""

from __future__ import annotations

import functools
import os
import tempfile

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(out + o, tl.load(x + o, mask=m) + tl.load(y + o, mask=m), mask=m)


ARGUMENTS = {"p": "*fp32", "h": "*fp16", "b": "*bf16", "c": "*i8", "w": "*i32", "i": "i32"}


@functools.cache
def compiled(
    fn: triton.JITFunction,
    arch: str,
    signature: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, object], ...],
    options: tuple[tuple[str, object], ...] = (),
) -> triton.compiler.CompiledKernel:
    """A kernel's compiled form; `.asm["hsaco"]` holds the code object's bytes."""
    with tempfile.TemporaryDirectory() as cache:
        before = os.environ.get("TRITON_CACHE_DIR")
        os.environ["TRITON_CACHE_DIR"] = cache
        try:
            return triton.compile(
                ASTSource(fn, dict(signature), dict(constants)),
                target=GPUTarget("hip", arch, 64 if arch.startswith("gfx9") else 32),
                options=dict(options),
            )
        finally:
            if before is None:
                del os.environ["TRITON_CACHE_DIR"]
            else:
                os.environ["TRITON_CACHE_DIR"] = before


def code_object(fn: triton.JITFunction, arch: str, signature, constants, **options) -> bytes:
    """The .hsaco of a Triton function for `arch`; signature and constants are dicts."""
    done = compiled(
        fn,
        arch,
        tuple(signature.items()),
        tuple(constants.items()),
        tuple(sorted(options.items())),
    )
    return done.asm["hsaco"]
