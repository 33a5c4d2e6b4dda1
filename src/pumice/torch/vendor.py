"""The providers beside our kernels: hipBLASLt or cuBLASLt through PyTorch for dense products,
PyTorch's attention backends, and AITER or FlashInfer where one is installed (`installed.py`).

One is chosen only where it measured fastest (`tuning/database.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from pumice.operators.triton.plan import Problem
from pumice.torch.installed import AITER, FLASHINFER
from pumice.torch.provider import Call, Provider, Tensors


def _blas_fault(problem: Problem) -> str | None:
    x, w = problem["x"], problem["w"]
    if problem.attrs.get("activation", "none") != "none" or "residual" in problem:
        return "the BLAS has no such epilogue here"
    if not (x.dtype == w.dtype == problem["out"].dtype):
        return "the BLAS wants one dtype"
    if problem.attrs.get("precision", "ieee") != "ieee":
        return "PyTorch's own switch decides about tf32"
    return None


def _blas(problem: Problem) -> Call | str:
    if (fault := _blas_fault(problem)) is not None:
        return fault
    if "bias" in problem:
        if problem["bias"].dtype != problem["x"].dtype:
            return "the BLAS wants a bias of the operands' dtype"
        return lambda t: _write(torch.addmm, t["bias"], t["x"], t["w"].t(), out=t["out"])
    return lambda t: _write(torch.mm, t["x"], t["w"].t(), out=t["out"])


def _batched(problem: Problem) -> Call | str:
    if (fault := _blas_fault(problem)) is not None:
        return fault
    if "bias" in problem:
        return "the BLAS has no bias for all batches here"
    return lambda t: _write(torch.bmm, t["x"], t["w"].transpose(1, 2), out=t["out"])


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


BLAS = Provider("vendor.blas", {"gemm": _blas, "batched_gemm": _batched})
SDPA = Provider("vendor.sdpa.cudnn", {"flash_attention": _sdpa("CUDNN_ATTENTION")})
PROVIDERS: tuple[Provider, ...] = (BLAS, SDPA, AITER, FLASHINFER)


def vendors_of(problem: Problem) -> dict[str, Call]:
    """The calls of every provider that computes this problem here, by the provider's name."""
    found: dict[str, Call] = {}
    for provider in PROVIDERS:
        call = provider.call(problem)
        if not isinstance(call, str):
            found[provider.name] = call
    return found


def explain_vendors(problem: Problem) -> dict[str, str]:
    """Why each of the others does not compute it."""
    answers = {provider.name: provider.call(problem) for provider in PROVIDERS}
    return {name: answer for name, answer in answers.items() if isinstance(answer, str)}
