"""quantize in TensorIR: a token is a task, a group of 32 stays in registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.quantized import GROUP, required_form
from pumice.operators.tir.base import CpuKernel, quantized_reason
from pumice.operators.tir.builder import FEW, SIZE, each, kernel, symbol_name
from pumice.operators.tir.quantize_group import QUANTIZED, QuantizedOutput
from pumice.operators.tir.vector import let, load, sweep
from pumice.targets import Target


class Quantize(CpuKernel):
    """Widths that are multiples of 32."""

    name = "quantize.tir"

    def reason(self, attrs: Mapping[str, Any], target: Target) -> str | None:
        return quantized_reason({**attrs, "quantize": True}, int(attrs["H"]))

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        width, form = int(call.attrs["H"]), required_form(call.attrs)
        symbol = symbol_name("quantize", target.lanes, call.entry, h=width, codes=form)
        with kernel(symbol, {"x": "float32", **QUANTIZED, "T": SIZE}) as k:
            x = k["x"]
            codes = QuantizedOutput(k, width, form)

            def token(t: Any) -> None:
                def part(i: Any) -> Any:
                    return load(x, t * width + i * GROUP, GROUP)

                inverse = codes.start_row(t, width // GROUP, part) if codes.whole_row else None
                for j, lanes in sweep(width, GROUP):
                    codes.store(t, j // GROUP, let(load(x, t * width + j, lanes)), inverse)

            each(k["T"], FEW, token)
        return k.source()
