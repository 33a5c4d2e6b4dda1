"""What PyTorch itself offers for an operator: cuBLAS, SDPA's backends, eager kernels. Each peer
takes the operator's tensors by name and returns its output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from pumice.operators.triton.plan import Problem

Tensors = Mapping[str, torch.Tensor]
Peer = Callable[[Tensors], torch.Tensor]


def _gemm(problem: Problem) -> dict[str, Peer]:
    if problem.attrs or "residual" in problem:
        return {}
    return {"cublas": lambda t: F.linear(t["x"], t["w"], t.get("bias"))}


def _heads(t: torch.Tensor, sequences: int) -> torch.Tensor:
    rows, heads, width = t.shape
    return t.view(sequences, rows // sequences, heads, width).transpose(1, 2)


def _attention(problem: Problem) -> dict[str, Peer]:
    attrs = problem.attrs
    if set(attrs) - {"causal", "scale"} or problem["q"].shape[0] != problem["k"].shape[0]:
        return {}
    sequences = problem["cu_seqlens_q"].shape[0] - 1
    grouped = problem["q"].shape[1] != problem["k"].shape[1]
    causal = bool(attrs.get("causal"))

    def sdpa(t: Tensors) -> torch.Tensor:
        q, k, v = (_heads(t[name], sequences) for name in ("q", "k", "v"))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)
        return out.transpose(1, 2).reshape(t["q"].shape[0], -1, t["v"].shape[2])

    def with_backend(name: str) -> Peer:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def run(t: Tensors) -> torch.Tensor:
            with sdpa_kernel(getattr(SDPBackend, name)):
                return sdpa(t)

        return run

    found: dict[str, Peer] = {
        "sdpa.flash": with_backend("FLASH_ATTENTION"),
        "sdpa.cudnn": with_backend("CUDNN_ATTENTION"),
    }
    if problem["q"].shape[0] <= 4096:
        found["eager"] = with_backend("MATH")
    return found


def _norm(problem: Problem) -> dict[str, Peer]:
    attrs = problem.attrs
    if attrs.get("quantize") or attrs.get("offset") or attrs.get("kind") != "rms":
        return {}

    def eager(t: Tensors) -> torch.Tensor:
        x = t["x"]
        if "residual" in t:
            x = x + t["residual"]
        return F.rms_norm(x, (x.shape[-1],), t.get("weight"), attrs["eps"])

    return {"eager": eager}


def _activation(problem: Problem) -> dict[str, Peer]:
    if problem.attrs.get("quantize") or problem.attrs.get("activation") != "silu":
        return {}

    def eager(t: Tensors) -> torch.Tensor:
        gate, up = t["x"].chunk(2, -1)
        return F.silu(gate) * up

    return {"eager": eager}


def _dense(problem: Problem) -> dict[str, Peer]:
    """cuBLAS on a 16-bit weight of the same shape: what 4 bits are measured against."""
    weight: dict[int, torch.Tensor] = {}

    def cublas(t: Tensors) -> torch.Tensor:
        key = id(t)
        if key not in weight:
            n, k = problem["w"].shape[0], problem["x"].shape[1]
            weight[key] = torch.randn(n, k, dtype=t["x"].dtype, device=t["x"].device)
        return F.linear(t["x"], weight[key])

    return {"cublas.dense": cublas}


def _dense_of_blocks(problem: Problem) -> dict[str, Peer]:
    """cuBLAS on bfloat16 operands of the same shapes."""
    dense: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def cublas(t: Tensors) -> torch.Tensor:
        if id(t) not in dense:
            dense[id(t)] = (t["x"].to(torch.bfloat16), t["w"].to(torch.bfloat16))
        return F.linear(*dense[id(t)])

    return {"cublas.bf16": cublas}


def _block_scaled(problem: Problem) -> dict[str, Peer]:
    """cuBLAS' own product with scales of 1 × 128 and 128 × 128, from CUDA 12.9 on, on Hopper."""
    found = _dense_of_blocks(problem)
    scaled_mm: Any = getattr(F, "scaled_mm", None)
    if scaled_mm is None or problem["x"].dtype != "float8_e4m3fn" or len(problem.inputs) > 4:
        return found
    from torch.nn.functional import ScalingType

    dtype = getattr(torch, problem["out"].dtype)
    columns: dict[int, torch.Tensor] = {}

    def block_scaled(t: Tensors) -> torch.Tensor:
        if id(t) not in columns:  # it wants the scales of one block of K side by side
            columns[id(t)] = t["x_scale"].t().contiguous().t()
        out: torch.Tensor = scaled_mm(
            t["x"], t["w"].t(), columns[id(t)], ScalingType.BlockWise1x128,
            t["w_scale"].t(), ScalingType.BlockWise128x128, output_dtype=dtype,
        )  # fmt: skip
        return out

    return {"cublas": block_scaled, **found}


def _integer(problem: Problem) -> dict[str, Peer]:
    """cuBLAS' product of 8-bit integers, without the scales."""
    m, k = problem["x"].shape
    if m <= 16 or k % 8 or problem["w"].shape[0] % 8:  # PyTorch's limits
        return {}
    return {"cublas.int32": lambda t: torch._int_mm(t["x"], t["w"].t())}


def _scaled(problem: Problem) -> dict[str, Peer]:
    found = _dense_of_blocks(problem)
    m, k = problem["x"].shape
    whole = all(problem[name].elements == 1 for name in ("x_scale", "w_scale"))
    if problem["x"].dtype != "float8_e4m3fn" or problem["w"].shape[0] % 16 or k % 16:
        return found
    dtype = getattr(torch, problem["out"].dtype)

    def scaled_mm(t: Tensors) -> torch.Tensor:
        a, b = t["x_scale"], t["w_scale"]
        if not whole:
            a, b = a.reshape(-1, 1).expand(m, 1), b.reshape(1, -1)
        return torch._scaled_mm(t["x"], t["w"].t(), a, b, out_dtype=dtype)

    return {"cublas": scaled_mm, **found}


def _batched(problem: Problem) -> dict[str, Peer]:
    if problem.attrs:
        return {}
    return {"cublas": lambda t: torch.bmm(t["x"], t["w"].transpose(1, 2))}


def _gated(problem: Problem) -> dict[str, Peer]:
    if problem.attrs.get("activation", "silu") != "silu" or problem["x"].dtype != "bfloat16":
        return {}

    def eager(t: Tensors) -> torch.Tensor:
        gate, up = F.linear(t["x"], t["w"]).chunk(2, -1)
        return F.silu(gate) * up

    return {"cublas+eager": eager}


def _softmax(problem: Problem) -> dict[str, Peer]:
    return {"eager": lambda t: torch.softmax(t["x"], -1)}


_PEERS: dict[str, Callable[[Problem], dict[str, Peer]]] = {
    "activation_mul": _activation,
    "batched_gemm": _batched,
    "flash_attention": _attention,
    "gated_gemm": _gated,
    "gemm": _gemm,
    "gemm_fp8": _scaled,
    "gemm_fp8_block": _block_scaled,
    "gemm_int8": _integer,
    "gemm_w4": _dense,
    "norm": _norm,
    "softmax": _softmax,
}


def peers_of(problem: Problem) -> dict[str, Peer]:
    """Peers by name; empty where PyTorch has nothing alike."""
    make: Any = _PEERS.get(problem.operator)
    return {} if make is None else make(problem)
