"""concat in TensorIR: a token is a task, and a copy of each part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.tir.base import CpuKernel
from pumice.operators.tir.builder import SIZE, kernel, symbol_name, tasks
from pumice.operators.tir.vector import load, store, sweep
from pumice.targets import Target

PARTS = ("a", "b", "c")


class Concat(CpuKernel):
    """Two or three parts; any widths."""

    name = "concat.tir"

    def reason(self, attrs: Mapping[str, Any], target: Target) -> str | None:
        count = len(attrs["widths"])
        return None if count in (2, 3) else f"takes 2 or 3 parts, not {count}"

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        widths = [int(width) for width in call.attrs["widths"]]
        names = PARTS[: len(widths)]
        shape = "_".join(map(str, widths))
        symbol = symbol_name("concat", target.lanes, call.entry, widths=shape)
        parameters = {**dict.fromkeys(names, "float32"), "out": "float32", "T": SIZE}
        with kernel(symbol, parameters) as k:
            with tasks(k["T"], parallel=call.entry != "decode") as t:
                first = 0
                for name, width in zip(names, widths, strict=True):
                    for j, lanes in sweep(width, target.lanes):
                        value = load(k[name], t * width + j, lanes)
                        store(k["out"], t * sum(widths) + first + j, value, lanes)
                    first += width
        return k.source()
