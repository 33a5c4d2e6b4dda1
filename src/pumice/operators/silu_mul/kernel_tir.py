"""silu_mul in TensorIR: a token is a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.quantized import GROUP, code_form
from pumice.operators.tir.base import CpuKernel, quantized_reason
from pumice.operators.tir.builder import FEW, SIZE, each, kernel, symbol_name
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

            def value(t: Any, j: Any, lanes: int) -> Any:
                gate = let(load(gate_up, t * (2 * width) + j, lanes))
                up = load(gate_up, t * (2 * width) + (j + width), lanes)
                return let(gate * sigmoid(gate, lanes) * up)

            whole_row = bool(codes and codes.whole_row)

            def token(t: Any) -> None:
                if codes and whole_row:
                    _row(codes, t, width, value)
                    return
                for j, lanes in sweep(width, GROUP):
                    if codes:
                        codes.store(t, j // GROUP, value(t, j, lanes))
                    else:
                        store(k["out"], t * width + j, value(t, j, lanes), lanes)

            # Scratch of a row's size comes from the pool that the threads of a parallel loop have.
            each(k["T"], 1 if whole_row else FEW, token)
        return k.source()


def _row(codes: QuantizedOutput, t: Any, width: int, value: Callable[..., Any]) -> None:
    """Quantizes a row by its own scale: the values wait in scratch until that is known."""
    row = T.alloc_buffer((width,), "float32")

    def part(i: Any) -> Any:
        found = value(t, i * GROUP, GROUP)
        store(row, i * GROUP, found, GROUP)
        return found

    inverse = codes.start_row(t, width // GROUP, part)
    with T.serial(0, width // GROUP) as group:
        codes.store(t, group, let(load(row, group * GROUP, GROUP)), inverse)
