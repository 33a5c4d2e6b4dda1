"""rope_append in TensorIR: a token is a task, its heads in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.rms_norm.kernel_tir import inverse_rms
from pumice.operators.tir.base import CpuKernel
from pumice.operators.tir.builder import FEW, SIZE, each, kernel, symbol_name
from pumice.operators.tir.vector import (
    cast,
    interleave,
    let,
    load,
    pick,
    prefetch,
    reinterpret,
    splat,
    store,
    sweep,
)
from pumice.targets import Target

LANES = 32

# float16 is stored as its bits: scalars of that type would be moved one by one through vector
# registers.
HALF = "uint16"

#: store(index in the head, vector, lanes)
Sink = Callable[[Any, Any, int], None]


class RopeAppend(CpuKernel):
    """Any head width; rotary width even and at most the head's."""

    name = "rope_append.tir"

    def reason(self, attrs: Mapping[str, Any], target: Target) -> str | None:
        dim = int(attrs["head_dim"])
        rotary = int(attrs.get("rotary_dim", dim))
        if rotary % 2 or not 0 < rotary <= dim:
            return f"the rotary width must be even and at most {dim}, not {rotary}"
        return None

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        a = call.attrs
        heads, kv_heads, dim = int(a["heads"]), int(a["kv_heads"]), int(a["head_dim"])
        size, rotary = int(a["block_size"]), int(a.get("rotary_dim", dim))
        pairs, norm = bool(a.get("interleaved")), bool(a.get("qk_norm"))
        eps = float(a["eps"]) if norm else None
        symbol = symbol_name(
            "rope_append", target.lanes, call.entry, q=heads, k=kv_heads, d=dim, r=rotary, b=size,
            pairs=pairs, eps=eps,
        )  # fmt: skip
        norms = {"q_norm": "float32", "k_norm": "float32"} if norm else {}
        parameters = {
            "qkv": "float32", "table": "float32", "slots": "int32", **norms, "q_out": "float32",
            "k_cache": HALF, "v_cache": HALF, "T": SIZE,
        }  # fmt: skip
        with kernel(symbol, parameters) as k:
            qkv = k["qkv"]
            width = (heads + 2 * kv_heads) * dim

            def head(start: Any, t: Any, weight: str, sink: Sink) -> None:
                factor = let(inverse_rms(qkv, start, dim, eps)) if eps is not None else None

                def read(j: Any, lanes: int) -> Any:
                    x = load(qkv, start + j, lanes)
                    if factor is None:
                        return x
                    return x * splat(factor, lanes) * load(k[weight], j, lanes)

                rotate(read, k["table"], t * rotary, rotary, pairs, sink)
                for j, lanes in sweep(dim - rotary, LANES):
                    sink(rotary + j, read(rotary + j, lanes), lanes)

            def token(t: Any) -> None:
                slot = let(k["slots"][t])
                block, offset = slot // size, slot % size
                # A key's elements go to as many cache lines: asked for one by one they take longer
                # than all else here.
                with T.serial(0, kv_heads) as h:
                    first = let(T.cast(block * kv_heads + h, "int64") * (dim * size) + offset)
                    with T.serial(0, dim) as j:
                        prefetch(k["k_cache"], first + j * size, to_write=True)
                with T.serial(0, heads) as h:
                    out = let(t * (heads * dim) + h * dim)
                    head(
                        t * width + h * dim, t, "q_norm",
                        lambda j, x, lanes: store(k["q_out"], out + j, x, lanes),
                    )  # fmt: skip
                row = T.alloc_buffer((dim,), HALF)
                with T.serial(0, kv_heads) as h:
                    head(
                        t * width + (heads + h) * dim, t, "k_norm",
                        lambda j, x, lanes: store(row, j, to_half(x, lanes), lanes),
                    )  # fmt: skip
                    # Tokens are contiguous in the key cache, so that attention reads 32 of them
                    # with one load.
                    first = let(T.cast(block * kv_heads + h, "int64") * (dim * size) + offset)
                    with T.serial(0, dim) as j:
                        T.buffer_store(k["k_cache"], row[j], [first + j * size])
                    source = let(t * width + (heads + kv_heads + h) * dim)
                    line = let((T.cast(block * kv_heads + h, "int64") * size + offset) * dim)
                    for j, lanes in sweep(dim, LANES):
                        value = to_half(load(qkv, source + j, lanes), lanes)
                        store(k["v_cache"], line + j, value, lanes)

            each(k["T"], FEW, token)
        return k.source()


def to_half(x: Any, lanes: int) -> Any:
    """float32 to the bits of float16, rounded to nearest even."""
    return reinterpret(cast(x, "float16", lanes), HALF, lanes)


def rotate(read: Any, table: Any, row: Any, rotary: int, pairs: bool, sink: Sink) -> None:
    """Rotates `rotary` elements: halves (i, i + rotary/2), or neighbours (2i, 2i + 1)."""
    half = rotary // 2
    for j, lanes in sweep(half, LANES // 2):
        cos = let(load(table, row + j, lanes))
        sin = let(load(table, row + half + j, lanes))
        if pairs:
            both = let(read(2 * j, 2 * lanes))
            a, b = (let(pick(both, list(range(side, 2 * lanes, 2)))) for side in (0, 1))
        else:
            a, b = let(read(j, lanes)), let(read(half + j, lanes))
        first, second = let(a * cos - b * sin), let(b * cos + a * sin)
        if pairs:
            sink(2 * j, interleave(first, second, lanes), 2 * lanes)
        else:
            sink(j, first, lanes)
            sink(half + j, second, lanes)
