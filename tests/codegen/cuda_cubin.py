"""The vector addition that scripts/try_driver_cuda.py loads: a cubin made by Triton without a GPU.

python tests/codegen/cuda_cubin.py sm_90 vector_add_sm90.cubin
"""

from __future__ import annotations

import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

BLOCK, WARPS = 1024, 4


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask)
    tl.store(out + offsets, total, mask=mask)


def vector_add_cubin(arch: str = "sm_90") -> bytes:
    """The cubin of `vector_add(x, y, out, n: i32, scratch, profiler's scratch)`: blocks of 128
    threads, each adding 1024 float32.
    """
    signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    source = ASTSource(vector_add, signature, {"BLOCK": BLOCK})
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    return triton.compile(source, target=target, options={"num_warps": WARPS}).asm["cubin"]


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(vector_add_cubin(sys.argv[1]))
