"""gather_rows in TensorIR: copies, on the calling thread, as rows of logits are few."""

from __future__ import annotations

from collections.abc import Mapping

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.tir.base import CpuKernel
from pumice.operators.tir.builder import SIZE, kernel, symbol_name, tasks
from pumice.operators.tir.vector import let, load, store, sweep
from pumice.targets import Target


class GatherRows(CpuKernel):
    """Any width."""

    name = "gather_rows.tir"

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        width = int(call.attrs["H"])
        symbol = symbol_name("gather_rows", target.lanes, "any", h=width)
        parameters = {"x": "float32", "rows": "int32", "out": "float32", "R": SIZE}
        with kernel(symbol, parameters) as k:
            x, rows, out = k["x"], k["rows"], k["out"]
            with tasks(k["R"], parallel=False) as r:
                row = let(rows[r])
                for j, lanes in sweep(width, 32):
                    store(out, r * width + j, load(x, row * width + j, lanes), lanes)
        return k.source()
