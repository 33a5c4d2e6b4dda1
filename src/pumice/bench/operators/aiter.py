"""AITER's Triton kernels as peers, where its package can be imported.

On an NVIDIA GPU AITER does not import by itself; whoever measures there loads its Triton modules
first. Its tile sizes are tuned for AMD.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pumice.operators.triton.plan import Problem

Tensors = Mapping[str, torch.Tensor]
Peer = Callable[[Tensors], Any]
NAME = "aiter"


def _function(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"aiter.ops.triton.{module}"), name)


def _gemm(problem: Problem) -> Peer | None:
    if problem.attrs or "residual" in problem:
        return None
    run = _function("gemm_a16w16", "gemm_a16w16")
    dtype = getattr(torch, problem["out"].dtype)
    return lambda t: run(t["x"], t["w"], t.get("bias"), dtype)


def _gemm_fp8_block(problem: Problem) -> Peer | None:
    run = _function("gemm_a8w8_blockscale", "gemm_a8w8_blockscale")
    dtype = getattr(torch, problem["out"].dtype)
    return lambda t: run(t["x"], t["w"], t["x_scale"], t["w_scale"], dtype)


def _gemm_scaled(problem: Problem) -> Peer | None:
    run = _function("gemm_a8w8", "gemm_a8w8")
    dtype = getattr(torch, problem["out"].dtype)
    return lambda t: run(
        t["x"], t["w"], t["x_scale"].view(-1, 1), t["w_scale"].view(1, -1), t.get("bias"), dtype
    )


def _norm(problem: Problem) -> Peer | None:
    attrs = problem.attrs
    eps = attrs["eps"]
    if attrs["kind"] != "rms" or attrs.get("weight_offset"):
        return None
    mode = attrs.get("quantize")
    if mode is None and "residual" in problem:
        add = _function("rmsnorm", "rmsnorm2d_fwd_with_add")

        def run(t: Tensors) -> torch.Tensor:
            add(t["out"], t["x"], t["residual"], t["residual"], t["weight"], eps)
            return t["out"]

        return run
    if mode is None:
        norm = _function("rmsnorm", "rms_norm")
        return lambda t: norm(t["x"], t["weight"], eps)
    if mode == "token" and "residual" in problem:
        dynamic = _function("rmsnorm", "rmsnorm2d_fwd_with_add_dynamicquant")
        return lambda t: dynamic(
            t["out"], t["x"], t["residual"], t["residual"], t["scales"], t["weight"], eps
        )
    if mode == "group":
        group = _function("fused_fp8_quant", "fused_rms_fp8_group_quant")
        dtype = getattr(torch, problem["out"].dtype)
        return lambda t: group(
            t["x"], t["weight"], eps, None, None, 0.0, 128, dtype, t.get("residual"), False
        )
    return None


def _quantize(problem: Problem) -> Peer | None:
    mode = problem.attrs["quantize"]
    if mode == "token":
        token = _function("quant", "dynamic_per_token_quant_fp8_i8")
        return lambda t: token(t["out"], t["x"], t["scales"])
    if mode == "tensor" and "scale" not in problem:
        tensor = _function("quant", "dynamic_per_tensor_quant_fp8_i8")
        return lambda t: tensor(t["out"], t["x"], t["scales"])
    if mode == "group":
        group = _function("fused_fp8_quant", "fused_flatten_fp8_group_quant")
        dtype = getattr(torch, problem["out"].dtype)
        return lambda t: group(t["x"].unsqueeze(1), 128, dtype)
    return None


def _activation(problem: Problem) -> Peer | None:
    if problem.attrs.get("quantize") != "group":
        return None
    run = _function("activation", "act_mul_and_fp8_group_quant")
    dtype = getattr(torch, problem["out"].dtype)
    return lambda t: run(t["x"], problem.attrs["activation"], 128, dtype)


def _attention(problem: Problem) -> Peer | None:
    attrs = problem.attrs
    if attrs.get("softcap") or attrs.get("window_left", -1) != -1 or "sinks" in problem:
        return None
    run = _function("mha", "flash_attn_varlen_func")
    steps = problem["cu_seqlens_q"].shape[0] - 1
    longest_q, longest_k = problem["q"].shape[0] // steps, problem["k"].shape[0] // steps
    scale = attrs.get("scale", problem["q"].shape[2] ** -0.5)
    return lambda t: run(
        t["q"], t["k"], t["v"], t["cu_seqlens_q"], t["cu_seqlens_k"], longest_q, longest_k,
        softmax_scale=scale, causal=bool(attrs.get("causal")),
    )  # fmt: skip


def _paged(problem: Problem) -> Peer | None:
    import triton.language as tl

    if problem.attrs.get("window_left", -1) != -1 or problem["k_cache"].dtype != "bfloat16":
        return None
    if problem.attrs.get("softcap") or "sinks" in problem:
        return None
    run = _function("pa_decode", "paged_attention_decode")
    longest = problem["block_table"].shape[1] * problem["k_cache"].shape[1]
    scale = problem.attrs.get("scale", problem["q"].shape[2] ** -0.5)
    caches: dict[int, Any] = {}
    one = torch.ones(1, device="cuda")

    def attend(t: Tensors) -> torch.Tensor:
        if id(t) not in caches:  # its layout is [blocks, heads, rows, width]
            caches[id(t)] = [t[n].transpose(1, 2).contiguous() for n in ("k_cache", "v_cache")]
        k, v = caches[id(t)]
        run(t["out"], t["q"], k, v, t["context_len"], t["block_table"], scale, longest,
            tl.bfloat16, one, one)  # fmt: skip
        return t["out"]

    return attend


_PEERS: dict[str, Callable[[Problem], Peer | None]] = {
    "activation_mul": _activation,
    "flash_attention": _attention,
    "gemm": _gemm,
    "gemm_fp8": _gemm_scaled,
    "gemm_fp8_block": _gemm_fp8_block,
    "gemm_int8": _gemm_scaled,
    "norm": _norm,
    "paged_attention": _paged,
    "quantize_fp8": _quantize,
}


def available() -> bool:
    """Whether AITER's Triton kernels can be imported here."""
    try:
        importlib.import_module("aiter.ops.triton.gemm_a16w16")
    except Exception:  # it fails in many ways without ROCm
        return False
    return True


def peer_of(problem: Problem) -> Peer | None:
    """AITER's kernel for the same work, or None."""
    make = _PEERS.get(problem.operator)
    if make is None:
        return None
    try:
        return make(problem)
    except ImportError:  # a version without that module
        return None
