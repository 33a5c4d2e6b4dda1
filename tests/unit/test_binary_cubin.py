"""What is read out of cubins: those that ptxas makes here, and files that are none."""

from __future__ import annotations

import functools

import pytest
import triton
import triton.language as tl
from emulator_kernels import compiled, vector_add
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pumice.binary.cubin import read_cubin
from pumice.errors import ArtifactError


@triton.jit
def hungry(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a = tl.load(x + at)
    for step in range(4):  # all of it lives until the sum is known
        a = tl.exp(a * tl.sum(a)) + step
    tl.store(x + at, a)


@functools.cache
def cubin(capability: int, **options: int) -> bytes:
    source = ASTSource(hungry, {"x": "*fp32", "BLOCK": "constexpr"}, {(1,): 4096})
    done = triton.compile(source, GPUTarget("cuda", capability, 32), {"num_warps": 1, **options})
    return done.asm["cubin"]


@pytest.mark.parametrize("capability", [80, 90, 120])
def test_registers(capability: int) -> None:
    (kernel,) = read_cubin(cubin(capability)).values()
    assert kernel.name == "hungry"
    assert 64 < kernel.registers <= 255 and kernel.instructions > 1000


def test_spills_lie_on_the_stack() -> None:
    few = read_cubin(cubin(90, maxnreg=32))["hungry"]
    assert few.registers <= 32 and few.local_bytes > 0


def test_other_files() -> None:
    signature = (("x", "*fp32"), ("y", "*fp32"), ("out", "*fp32"), ("n", "i32"))
    amd = compiled(vector_add, "gfx1100", signature, (("BLOCK", 256),), ())
    with pytest.raises(ArtifactError, match="machine 224; a cubin's is 190"):
        read_cubin(amd.asm["hsaco"])
    with pytest.raises(ArtifactError, match="not an ELF"):
        read_cubin(b"PTX")
