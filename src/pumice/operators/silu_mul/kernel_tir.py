"""silu_mul in TensorIR: a token is a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.quantized import GROUP, code_form
from pumice.operators.tir.base import CpuKernel, quantized_reason
from pumice.operators.tir.builder import SIZE, kernel, symbol_name, tasks
from pumice.operators.tir.math import sigmoid
from pumice.operators.tir.quantize_group import FLOAT, QUANTIZED, QuantizedOutput
from pumice.operators.tir.vector import let, load, store, sweep
from pumice.targets import Target


class SiluMul(CpuKernel):
    """Any width; int8 output for multiples of 32."""

    name = "silu_mul.tir"

    def reason(self, attrs: Mapping[str, Any], target: Target) -> str | None:
        return quantized_reason(attrs, int(attrs["I"]))

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        width = int(call.attrs["I"])
        form = code_form(call.attrs)
        symbol = symbol_name("silu_mul", target.lanes, call.entry, i=width, quantized=form)
        outputs = QUANTIZED if form else FLOAT
        with kernel(symbol, {"gate_up": "float32", **outputs, "T": SIZE}) as k:
            gate_up = k["gate_up"]
            codes = QuantizedOutput(k, width, form) if form else None
            with tasks(k["T"], parallel=call.entry != "decode") as t:
                for j, lanes in sweep(width, GROUP):
                    gate = let(load(gate_up, t * (2 * width) + j, lanes))
                    up = load(gate_up, t * (2 * width) + (j + width), lanes)
                    value = let(gate * sigmoid(gate, lanes) * up)
                    if codes:
                        codes.store(t, j // GROUP, value)
                    else:
                        store(k["out"], t * width + j, value, lanes)
        return k.source()
