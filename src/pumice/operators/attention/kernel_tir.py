"""Attention in TensorIR for the CPU: tiles for ragged batches, splits of the context for
decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.operators.attention.decode_tir import decode
from pumice.operators.attention.prefill_tir import prefill
from pumice.operators.attention.problem import UNIT, read_problem
from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.tir.base import CpuKernel, quantized_reason
from pumice.targets import Target


class Attention(CpuKernel):
    """Paged, causal, grouped heads, optional window and soft cap."""

    name = "attention.tir"

    def reason(self, attrs: Mapping[str, Any], target: Target) -> str | None:
        heads, kv_heads, dim = int(attrs["heads"]), int(attrs["kv_heads"]), int(attrs["head_dim"])
        if heads % kv_heads:
            return (
                f"the number of heads must be a multiple of the kv heads, not {heads} of {kv_heads}"
            )
        if dim % 8:
            return f"the head width must be a multiple of 8, not {dim}"
        if int(attrs["block_size"]) % UNIT:
            return f"a cache block must hold a multiple of {UNIT} tokens, not {attrs['block_size']}"
        if attrs.get("quantize") and int(attrs.get("planes", 1)) != 1:
            return "heads are quantized one by one, and codes of two planes share a row's scale"
        return quantized_reason(attrs, dim)

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        problem = read_problem(call.attrs, target)
        return decode(problem) if call.entry == "decode" else prefill(problem)
