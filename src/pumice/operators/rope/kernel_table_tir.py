"""rope_table in TensorIR: a token is a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.tir.base import CpuKernel
from pumice.operators.tir.builder import SIZE, kernel, symbol_name, tasks
from pumice.operators.tir.math import sincos
from pumice.operators.tir.vector import cast, let, load, splat, store, sweep
from pumice.targets import Target


class RopeTable(CpuKernel):
    """Even rotary widths; angles up to 2·10⁵."""

    name = "rope_table.tir"

    def reason(self, attrs: Mapping[str, Any], target: Target) -> str | None:
        return f"the rotary width must be even, not {attrs['D']}" if attrs["D"] % 2 else None

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        half = int(call.attrs["D"]) // 2
        mscale = float(call.attrs.get("mscale", 1.0))
        symbol = symbol_name("rope_table", target.lanes, call.entry, half=half, mscale=mscale)
        parameters = {"positions": "int32", "inv_freq": "float32", "table": "float32", "T": SIZE}
        with kernel(symbol, parameters) as k:
            table = k["table"]
            with tasks(k["T"], parallel=call.entry != "decode") as t:
                position = let(cast(k["positions"][t], "float32", 1))
                for j, lanes in sweep(half, 16):
                    angle = let(load(k["inv_freq"], j, lanes) * splat(position, lanes))
                    sine, cosine = sincos(angle, lanes)
                    store(table, t * (2 * half) + j, cosine * splat(mscale, lanes), lanes)
                    store(table, t * (2 * half) + half + j, sine * splat(mscale, lanes), lanes)
        return k.source()
