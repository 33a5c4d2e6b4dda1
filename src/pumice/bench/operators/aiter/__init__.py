"""AITER's Triton kernels as peers, where its package can be imported.

On an NVIDIA GPU AITER does not import by itself; whoever measures there loads its Triton modules
first. Its tile sizes are its own, tuned for AMD. A peer does what the operator does in its call;
what AITER wants in another form (a table of cosines, lists in place of a block table) is made once,
outside the timed calls.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable

from pumice.bench.operators.aiter.attention import (
    decode_attention,
    flash_attention,
    mla_decode,
    paged_attention,
    paged_prefill,
    rope_cache,
)
from pumice.bench.operators.aiter.experts import moe_gemm
from pumice.bench.operators.aiter.module import Peer, Tensors
from pumice.bench.operators.aiter.products import (
    batched_gemm,
    gated_gemm,
    gemm,
    gemm_fp8_block,
    gemm_scaled,
)
from pumice.bench.operators.aiter.rows import activation_mul, norm, quantize, softmax
from pumice.operators.triton.plan import Problem

__all__ = ["NAME", "OPERATORS", "Peer", "Tensors", "available", "installed", "peer_of"]

NAME = "aiter"

_PEERS: dict[str, Callable[[Problem], Peer | None]] = {
    "activation_mul": activation_mul,
    "batched_gemm": batched_gemm,
    "decode_attention": decode_attention,
    "flash_attention": flash_attention,
    "gated_gemm": gated_gemm,
    "gemm": gemm,
    "gemm_fp8": gemm_scaled,
    "gemm_fp8_block": gemm_fp8_block,
    "gemm_int8": gemm_scaled,
    "mla_decode": mla_decode,
    "moe_gemm": moe_gemm,
    "norm": norm,
    "paged_attention": paged_attention,
    "paged_prefill": paged_prefill,
    "quantize_fp8": quantize,
    "rope_cache": rope_cache,
    "softmax": softmax,
}


OPERATORS = frozenset(_PEERS)


def installed() -> bool:
    """Whether there is a package of that name, without importing it."""
    return NAME in sys.modules or importlib.util.find_spec(NAME) is not None


def available() -> bool:
    """Whether AITER's Triton kernels can be imported here."""
    try:
        importlib.import_module("aiter.ops.triton.gemm_a16w16")
    except Exception:  # it fails in many ways without ROCm
        return False
    return True


def peer_of(problem: Problem) -> Peer | None:
    """AITER's kernel for the same work, or None. It returns what it wrote of "out" (of "q_out")."""
    make = _PEERS.get(problem.operator)
    if make is None:
        return None
    try:
        return make(problem)
    except ImportError:  # a version without that module
        return None
