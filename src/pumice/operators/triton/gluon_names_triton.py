# mypy: ignore-errors
"""Functions of Gluon that Triton 3.6 and later versions call differently.

async_load, async_store: a block by the tensor memory accelerator into shared memory, or out of it.
begin_copy: values from addresses into shared memory, whose end is waited for later (`cp.async`).
barrier: of a program's warps.
"""

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, tma

async_load = getattr(tma, "async_load", tma.async_copy_global_to_shared)
async_store = getattr(tma, "async_store", tma.async_copy_shared_to_global)
begin_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
