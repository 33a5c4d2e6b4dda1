"""rms_norm in TensorIR: a token is a task; two passes over a row that stays in the first-level
cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.quantized import GROUP, code_form
from pumice.operators.tir.base import CpuKernel, quantized_reason
from pumice.operators.tir.builder import SIZE, kernel, symbol_name, tasks
from pumice.operators.tir.quantize_group import FLOAT, QUANTIZED, QuantizedOutput
from pumice.operators.tir.vector import horizontal_sum, let, load, pieces, splat, store, sweep
from pumice.targets import Target

LANES = 32


class RmsNorm(CpuKernel):
    """Any width; int8 output for multiples of 32."""

    name = "rms_norm.tir"

    def reason(self, attrs: Mapping[str, Any], target: Target) -> str | None:
        return quantized_reason(attrs, int(attrs["H"]))

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        width, eps = int(call.attrs["H"]), float(call.attrs["eps"])
        form = code_form(call.attrs)
        symbol = symbol_name("rms_norm", target.lanes, call.entry, h=width, eps=eps, quantized=form)
        outputs = QUANTIZED if form else FLOAT
        parameters = {"x": "float32", "weight": "float32", **outputs, "T": SIZE}
        with kernel(symbol, parameters) as k:
            x, weight = k["x"], k["weight"]
            codes = QuantizedOutput(k, width, form) if form else None
            with tasks(k["T"], parallel=call.entry != "decode") as t:
                row = t * width
                factor = let(inverse_rms(x, row, width, eps))
                inverse = None
                if codes and codes.whole_row:

                    def part(i: Any, row: Any = row, factor: Any = factor) -> Any:
                        scaled = load(x, row + i * GROUP, GROUP) * splat(factor, GROUP)
                        return scaled * load(weight, i * GROUP, GROUP)

                    inverse = codes.start_row(t, width // GROUP, part)
                for j, lanes in sweep(width, GROUP if codes else LANES):
                    scaled = load(x, row + j, lanes) * splat(factor, lanes)
                    value = let(scaled * load(weight, j, lanes))
                    if codes:
                        codes.store(t, j // GROUP, value, inverse)
                    else:
                        store(k["out"], row + j, value, lanes)
        return k.source()


def inverse_rms(x: Any, start: Any, width: int, eps: float) -> Any:
    """1 / sqrt(mean(x²) + eps) of `width` elements from `start`, as a float32 scalar."""
    total = T.alloc_buffer((1,), "float32")
    T.buffer_store(total, T.float32(0), [0])
    for first, lanes, count in pieces(width, LANES):
        squares = T.alloc_buffer((lanes,), "float32")
        store(squares, 0, splat(0.0, lanes), lanes)
        with T.serial(0, count) as step:
            v = let(load(x, start + first + step * lanes, lanes))
            store(squares, 0, T.fma(v, v, load(squares, 0, lanes)), lanes)
        part = horizontal_sum(load(squares, 0, lanes), lanes)
        T.buffer_store(total, total[0] + part, [0])
    return T.float32(1) / T.sqrt(total[0] / T.float32(width) + T.float32(eps))
