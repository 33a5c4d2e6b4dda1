"""What the vendors' libraries compute, as providers beside our kernels: hipBLASLt or cuBLASLt
through PyTorch for dense products, PyTorch's attention backends.

A provider writes into the given output, as a kernel does, and is chosen only where it measured
fastest (`tuning/database.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F

from pumice.operators.triton.plan import Problem

Tensors = Mapping[str, torch.Tensor]
Call = Callable[[Tensors], None]


def _blas(problem: Problem) -> Call | str:
    x, w = problem["x"], problem["w"]
    if problem.attrs.get("activation", "none") != "none" or "residual" in problem:
        return "the BLAS has no such epilogue here"
    if not (x.dtype == w.dtype == problem["out"].dtype):
        return "the BLAS wants one dtype"
    if problem.attrs.get("precision", "ieee") != "ieee":
        return "PyTorch's own switch decides about tf32"
    if "bias" in problem:
        if problem["bias"].dtype != x.dtype:
            return "the BLAS wants a bias of the operands' dtype"
        return lambda t: _write(torch.addmm, t["bias"], t["x"], t["w"].t(), out=t["out"])
    return lambda t: _write(torch.mm, t["x"], t["w"].t(), out=t["out"])


def _write(function: Callable[..., torch.Tensor], *given: torch.Tensor, out: torch.Tensor) -> None:
    function(*given, out=out)


def _sdpa(backend: str) -> Callable[[Problem], Call | str]:
    def make(problem: Problem) -> Call | str:
        attrs = problem.attrs
        used = {k for k, v in attrs.items() if v not in (None, False, 0, 0.0, -1)}
        if used - {"causal", "scale"} or "sinks" in problem:
            return "SDPA has no windows, caps, sinks or lse"
        q, k = problem["q"], problem["k"]
        # A batch of equal lengths is not to be seen from the sizes; one sequence is.
        if problem["cu_seqlens_q"].shape[0] != 2 or q.shape[0] != k.shape[0]:
            return "SDPA has no ragged batches"
        grouped = q.shape[1] != k.shape[1]
        causal, scale = bool(attrs.get("causal")), attrs.get("scale")

        def run(t: Tensors) -> None:
            from torch.nn.attention import SDPBackend, sdpa_kernel

            q, k, v = (t[name].transpose(0, 1).unsqueeze(0) for name in ("q", "k", "v"))
            with sdpa_kernel(getattr(SDPBackend, backend)):
                out = F.scaled_dot_product_attention(
                    q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped
                )
            t["out"].copy_(out[0].transpose(0, 1))

        return run

    return make


# Provider → operator → (problem) → the call, or why not.
VENDORS: dict[str, dict[str, Callable[[Problem], Call | str]]] = {
    "vendor.blas": {"gemm": _blas},
    "vendor.sdpa.cudnn": {"flash_attention": _sdpa("CUDNN_ATTENTION")},
}


def vendor_call(name: str, problem: Problem) -> Call | str:
    """The call of a provider for a problem, or why it has none."""
    make = VENDORS.get(name, {}).get(problem.operator)
    return f"{name} has no {problem.operator}" if make is None else make(problem)


def vendors_of(problem: Problem) -> dict[str, Call]:
    """Every provider that computes this problem."""
    found: dict[str, Call] = {}
    for name in VENDORS:
        call = vendor_call(name, problem)
        if not isinstance(call, str):
            found[name] = call
    return found
