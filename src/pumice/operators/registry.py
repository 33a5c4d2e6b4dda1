"""The operators, as lazy strings: nothing is imported before it is asked for."""

from __future__ import annotations

import difflib
import functools
import importlib
from typing import Any

from pumice.errors import UnsupportedError, UsageError
from pumice.operators.base import Kernel, OperatorSpec
from pumice.operators.triton.plan import TritonKernel

OPERATORS: dict[str, str] = {
    "add": "pumice.operators.add.spec:SPEC",
    "attention": "pumice.operators.attention.spec:SPEC",
    "concat": "pumice.operators.concat.spec:SPEC",
    "embedding": "pumice.operators.embedding.spec:SPEC",
    "gather_rows": "pumice.operators.gather_rows.spec:SPEC",
    "linear": "pumice.operators.linear.spec:SPEC",
    "quantize": "pumice.operators.quantize.spec:SPEC",
    "rms_norm": "pumice.operators.rms_norm.spec:SPEC",
    "rope_append": "pumice.operators.rope.spec:APPEND_SPEC",
    "rope_table": "pumice.operators.rope.spec:TABLE_SPEC",
    "silu_mul": "pumice.operators.silu_mul.spec:SPEC",
}


def resolve(reference: str) -> Any:
    """The object that a "module:attribute" string names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


@functools.cache
def get_spec(name: str) -> OperatorSpec:
    """An operator's spec; UnsupportedError names the known operators."""
    known = OPERATORS | GPU_OPERATORS
    if name not in known:
        raise UnsupportedError(f"operator {name!r} is unknown; known: {', '.join(known)}")
    spec = resolve(known[name])
    assert isinstance(spec, OperatorSpec)
    return spec


# Operators of the tensor engine, which have Triton kernels; named as users of PyTorch know them.
GPU_OPERATORS: dict[str, str] = {
    "batched_gemm": "pumice.operators.batched_gemm.spec:SPEC",
    "gated_gemm": "pumice.operators.gated_gemm.spec:SPEC",
    "gemm": "pumice.operators.gemm.spec:SPEC",
    "flash_attention": "pumice.operators.flash_attention.spec:SPEC",
    "mla_decode": "pumice.operators.mla_decode.spec:SPEC",
    "decode_attention": "pumice.operators.decode_attention.spec:SPEC",
    "paged_attention": "pumice.operators.paged_attention.spec:SPEC",
    "paged_prefill": "pumice.operators.paged_prefill.spec:SPEC",
    "rope_cache": "pumice.operators.rope_cache.spec:SPEC",
    "activation_mul": "pumice.operators.activation_mul.spec:SPEC",
    "dequantize_fp8": "pumice.operators.quantize_fp8.dequantize_spec:SPEC",
    "dequantize_w4": "pumice.operators.gemm_w4.dequantize_spec:SPEC",
    "gemm_w8": "pumice.operators.gemm_w8.spec:SPEC",
    "gemm_w4": "pumice.operators.gemm_w4.spec:SPEC",
    "fused_w4": "pumice.operators.fused_w4.spec:SPEC",
    "norm": "pumice.operators.norm.spec:SPEC",
    "quantize_fp8": "pumice.operators.quantize_fp8.spec:SPEC",
    "sample_tokens": "pumice.operators.sample_tokens.spec:SPEC",
    "softmax": "pumice.operators.softmax.spec:SPEC",
    "token_embedding": "pumice.operators.token_embedding.spec:SPEC",
    "gemm_fp8": "pumice.operators.gemm_fp8.spec:SPEC",
    "gemm_fp8_block": "pumice.operators.gemm_fp8_block.spec:SPEC",
    "gemm_int8": "pumice.operators.gemm_int8.spec:SPEC",
    "moe_gemm": "pumice.operators.moe_gemm.spec:SPEC",
    "topk_softmax": "pumice.operators.topk_softmax.spec:SPEC",
}


def require_gpu_operator(name: str) -> None:
    """UsageError for an operator without GPU kernels, with those that have some."""
    if name not in GPU_OPERATORS:
        near = difflib.get_close_matches(name, GPU_OPERATORS, 3)
        raise UsageError(
            f"operator {name!r} has no GPU kernels; there are {', '.join(GPU_OPERATORS)}",
            hint=f"Did you mean {' or '.join(near)}?" if near else None,
        )


@functools.cache
def triton_kernels_of(name: str) -> tuple[TritonKernel, ...]:
    """An operator's GPU kernels, in the spec's order of preference. Imports Triton."""
    return tuple(resolve(reference)() for reference in get_spec(name).triton_kernels)


@functools.cache
def kernels_of(name: str) -> tuple[Kernel, ...]:
    """An operator's kernels, in the spec's order of preference."""
    return tuple(resolve(reference)() for reference in get_spec(name).kernels)
