"""AITER's products."""

from __future__ import annotations

from pumice.bench.operators.aiter.module import Peer, function, out_dtype
from pumice.operators.triton.plan import Problem

_SIXTEEN_BITS = ("bfloat16", "float16")


def gemm(problem: Problem) -> Peer | None:
    if set(problem.attrs) - {"out_dtype", "activation"} or "residual" in problem:
        return None
    run = function("gemm_a16w16", "gemm_a16w16")
    dtype, activation = out_dtype(problem), problem.attrs.get("activation")
    return lambda t: run(t["x"], t["w"], t.get("bias"), dtype, activation=activation)


def gemm_fp8_block(problem: Problem) -> Peer | None:
    if set(problem.attrs) - {"out_dtype"} or len(problem.inputs) > 4:
        return None
    run = function("gemm_a8w8_blockscale", "gemm_a8w8_blockscale")
    dtype = out_dtype(problem)
    return lambda t: run(t["x"], t["w"], t["x_scale"], t["w_scale"], dtype)


def gemm_scaled(problem: Problem) -> Peer | None:
    if set(problem.attrs) - {"out_dtype"} or "residual" in problem:
        return None
    for name in ("x", "w"):  # it reads a scale a row and a column
        scale = f"{name}_scale"
        if scale not in problem or problem[scale].elements != problem[name].shape[0]:
            return None
    run = function("gemm_a8w8", "gemm_a8w8")
    dtype = out_dtype(problem)
    return lambda t: run(
        t["x"], t["w"], t["x_scale"].view(-1, 1), t["w_scale"].view(1, -1), t.get("bias"), dtype
    )


def batched_gemm(problem: Problem) -> Peer | None:
    if problem.attrs or len(problem.inputs) > 2 or problem["x"].dtype not in _SIXTEEN_BITS:
        return None
    if not all(problem[name].contiguous for name in ("x", "w")):
        return None  # it would copy them first
    run = function("batched_gemm_bf16", "batched_gemm_bf16")
    dtype = out_dtype(problem)
    return lambda t: run(t["x"], t["w"], None, dtype, None, t["out"])


def gated_gemm(problem: Problem) -> Peer | None:
    """Its weight, too, holds gate's rows, then up's. Of 8-bit floats it has none."""
    if problem["x"].dtype not in _SIXTEEN_BITS:
        return None
    run = function("gemm_a16w16_gated", "gemm_a16w16_gated")
    activation = problem.attrs.get("activation", "silu")
    dtype = out_dtype(problem)
    return lambda t: run(t["x"], t["w"], dtype, t["out"], activation=activation)
