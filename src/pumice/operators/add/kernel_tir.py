"""add in TensorIR. `out` may be `a` or `b` itself: each element is read before it is written."""

from __future__ import annotations

from collections.abc import Mapping

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.tir.base import CpuKernel
from pumice.operators.tir.builder import SIZE, kernel, symbol_name, tasks
from pumice.operators.tir.vector import load, store, sweep
from pumice.targets import Target


class Add(CpuKernel):
    """Any width."""

    name = "add.tir"

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        width = int(call.attrs["H"])
        symbol = symbol_name("add", target.lanes, call.entry, h=width)
        parameters = {"a": "float32", "b": "float32", "out": "float32", "T": SIZE}
        with kernel(symbol, parameters) as k:
            a, b, out = k["a"], k["b"], k["out"]
            with tasks(k["T"], parallel=call.entry != "decode") as t:
                for j, lanes in sweep(width, 32):
                    where = t * width + j
                    store(out, where, load(a, where, lanes) + load(b, where, lanes), lanes)
        return k.source()
