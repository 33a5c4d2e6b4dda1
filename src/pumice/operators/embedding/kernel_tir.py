"""embedding in TensorIR: a token is a task; a row of an interleaved table is read word by word.

The caller guarantees 0 ≤ token < V.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.tir.base import CpuKernel
from pumice.operators.tir.builder import SIZE, kernel, tasks
from pumice.operators.tir.vector import cast, let, splat, splat_int, store
from pumice.quantization.base import QuantFormat
from pumice.targets import Target


class Embedding(CpuKernel):
    """Every format, in the layout of the target's matmul kernels."""

    name = "embedding.tir"

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        fmt, layout = call.weights["w"]
        width = int(call.attrs["H"])
        parallel = call.entry != "decode"
        symbol = f"pumice_embedding_{call.entry}_{fmt.name}_h{width}_r{layout.rows}"
        weights = (
            {"w.data": fmt.dense_dtype or "float32"}
            if not fmt.affine
            else {
                "w.codes": "uint32",
                "w.scales": fmt.scale_dtype,
                **({"w.mins": fmt.scale_dtype} if fmt.has_min else {}),
            }
        )
        parameters = {"tokens": "int32", **weights, "out": "float32", "T": SIZE}
        with kernel(symbol, parameters) as k:
            with tasks(k["T"], parallel=parallel) as t:
                token = let(k["tokens"][t])
                block, lane = let(token // layout.rows), let(token % layout.rows)
                if fmt.affine:
                    _affine(k, fmt, layout.rows, width, t, block, lane)
                else:
                    with T.serial(0, width) as j:
                        value = k["w.data"][(block * width + j) * layout.rows + lane]
                        store(k["out"], t * width + j, T.cast(value, "float32"), 1)
        return k.source()


def _affine(k: Any, fmt: QuantFormat, rows: int, width: int, t: Any, block: Any, lane: Any) -> None:
    groups = width // fmt.group
    half = fmt.group // 2
    with T.serial(0, groups) as g:
        where = let((block * groups + g) * rows + lane)
        scale = let(splat(T.cast(k["w.scales"][where], "float32"), 4))
        low = (
            let(splat(T.cast(k["w.mins"][where], "float32"), 4))
            if fmt.has_min
            else let(scale * splat(float(fmt.zero), 4))
        )
        shifts = T.ramp(T.uint32(0), T.uint32(8), 4)

        def put(codes: Any, column: Any) -> None:
            value = scale * cast(codes, "float32", 4) - low
            store(k["out"], t * width + g * fmt.group + column, value, 4)

        if fmt.code_bits == 8:
            for j in range(fmt.group // 4):
                word = k["w.codes"][(block * (width // 4) + g * (fmt.group // 4) + j) * rows + lane]
                bits = let(T.broadcast(word, 4) >> shifts)
                put(bits & splat_int(255, 4, "uint32"), 4 * j)
        else:
            per = fmt.group // 8
            for j in range(per):
                word = k["w.codes"][((block * groups + g) * per + j) * rows + lane]
                bits = let(T.broadcast(word, 4) >> shifts)
                put(bits & splat_int(15, 4, "uint32"), 4 * j)
                high = bits >> splat_int(4, 4, "uint32")
                put(high & splat_int(15, 4, "uint32"), half + 4 * j)
