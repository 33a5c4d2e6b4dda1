"""linear with float32 activations in TensorIR: dense weights, or codes dequantized in registers,
and fused multiply-adds.

This is the path of f16, bf16 and f32 weights, and of quantized weights when a caller asks for
exact activations. One token is bound by the weights' bytes; many are bound by multiply-adds (a
vector of rows times one activation each), so a register tile holds several tokens and a block of
rows is dequantized once for all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.linear.epilogue import Epilogue
from pumice.operators.tir.base import CpuKernel
from pumice.operators.tir.builder import SIZE, kernel, tasks, when
from pumice.operators.tir.vector import cast, let, load, reinterpret, splat, splat_int, store
from pumice.quantization.base import QuantFormat
from pumice.targets import Target


class LinearFloat(CpuKernel):
    """Dense weights of any K; affine weights whose K is a multiple of their group."""

    name = "linear.tir.float"

    def __init__(self) -> None:
        self._built: dict[str, KernelSource] = {}

    def configs(self, call: OperatorCall, target: Target) -> Sequence[Mapping[str, int]]:
        return ({"tokens": 4, "blocks": 2}, {"tokens": 8, "blocks": 1}, {"tokens": 4, "blocks": 1})

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        fmt, layout = call.weights["w"]
        bias, residual = bool(call.attrs["bias"]), bool(call.attrs["residual"])
        symbol = (
            f"pumice_linear_float_{fmt.name}_r{layout.rows}_t{config['tokens']}b{config['blocks']}"
            f"{'_bias' if bias else ''}{'_residual' if residual else ''}"
        )
        parameters: dict[str, str] = {"x": "float32"}
        if fmt.affine:
            parameters |= {"w.codes": "uint32", "w.scales": fmt.scale_dtype}
            if fmt.has_min:
                parameters["w.mins"] = fmt.scale_dtype
        else:
            # TensorIR has no arithmetic on bfloat16 vectors everywhere: its bits are a float32's
            # upper half.
            parameters["w.data"] = "uint16" if fmt.name == "bf16" else str(fmt.dense_dtype)
        if bias:
            parameters["bias"] = "float32"
        if residual:
            parameters["residual"] = "float32"
        parameters |= {"out": "float32", "T": SIZE, "N": SIZE, "K": SIZE}
        if symbol in self._built:  # sizes are arguments: a model has many calls and few symbols
            return self._built[symbol]
        with kernel(symbol, parameters) as k:
            _Body(k, fmt, layout.rows, config, bias, residual).build()
        self._built[symbol] = k.source()
        return self._built[symbol]


@dataclass
class _Body:
    """The loops of one kernel."""

    k: Any
    fmt: QuantFormat
    rows: int
    config: Mapping[str, int]
    bias: bool
    residual: bool

    @property
    def chunk(self) -> int:
        """Inputs that one loop step takes: a weight group, or one for dense weights."""
        return self.fmt.group if self.fmt.affine else 1

    def build(self) -> None:
        tokens = self.k["T"]
        self.steps = let(self.k["K"] // self.chunk)
        self.blocks = let((self.k["N"] + (self.rows - 1)) // self.rows)
        with when(tokens == 1):
            self._direct(1, 4 if not self.fmt.affine else 1)
        with when(T.And(tokens > 1, tokens <= 4)):
            self._direct(4, 1)
        with when(tokens > 4):
            self._panel()

    def _direct(self, count: int, width: int) -> None:
        panels = let(self.blocks // width)
        with tasks(panels, parallel=True) as panel:
            self._tile(panel * width, 0, count, width, None)
        if width > 1:
            with T.serial(0, self.blocks - panels * width) as rest:
                self._tile(panels * width + rest, 0, count, 1, None)

    def _panel(self) -> None:
        count, width = int(self.config["tokens"]), int(self.config["blocks"])
        tiles = let((self.k["T"] + (count - 1)) // count)
        panels = let((self.blocks + (width - 1)) // width)
        with tasks(panels, parallel=True) as panel:
            scratch = T.alloc_buffer((self.k["K"] * (self.rows * width),), "float32")
            full = (panel + 1) * width <= self.blocks
            with when(full):
                self._panel_tiles(panel * width, tiles, count, width, scratch)
            if width > 1:
                with when(T.Not(full)):
                    with T.serial(0, self.blocks - panel * width) as rest:
                        self._panel_tiles(panel * width + rest, tiles, count, 1, scratch)

    def _panel_tiles(self, block: Any, tiles: Any, count: int, width: int, scratch: Any) -> None:
        r = self.rows
        with T.serial(0, self.steps) as step:
            for b in range(width):
                for j, value in enumerate(self._weights(let(block + b), step)):
                    store(scratch, ((step * self.chunk + j) * width + b) * r, value, r)
        with T.serial(0, tiles) as tile:
            self._tile(block, tile * count, count, width, scratch)

    def _weights(self, block: Any, step: Any) -> list[Any]:
        """The float32 vectors (a lane a row) of one step's inputs, in the order of k."""
        r, fmt = self.rows, self.fmt
        if not fmt.affine:
            raw = load(self.k["w.data"], (block * self.k["K"] + step) * r, r)
            if fmt.name == "bf16":
                bits = T.cast(raw, f"uint32x{r}") << splat_int(16, r, "uint32")
                return [let(reinterpret(bits, "float32", r))]
            return [let(cast(raw, "float32", r))]
        where = let((block * self.steps + step) * r)
        scale = let(cast(load(self.k["w.scales"], where, r), "float32", r))
        low = (
            let(cast(load(self.k["w.mins"], where, r), "float32", r))
            if fmt.has_min
            else let(scale * splat(float(fmt.zero), r))
        )
        return [
            let(scale * cast(reinterpret(code, "int32", r), "float32", r) - low)
            for code in self._codes(block, step)
        ]

    def _codes(self, block: Any, step: Any) -> list[Any]:
        r, fmt, codes = self.rows, self.fmt, self.k["w.codes"]

        def byte(word: Any, shift: int, mask: int) -> Any:
            shifted = word if shift == 0 else word >> splat_int(shift, r, "uint32")
            return shifted & splat_int(mask, r, "uint32")

        if fmt.code_bits == 8:
            words = fmt.group // 4
            loaded = [
                let(load(codes, ((block * self.steps + step) * words + j) * r, r))
                for j in range(words)
            ]
            return [byte(w, 8 * b, 255) for w in loaded for b in range(4)]
        words = fmt.group // 8
        loaded = [
            let(load(codes, ((block * self.steps + step) * words + j) * r, r)) for j in range(words)
        ]
        return [byte(w, 8 * b + shift, 15) for shift in (0, 4) for w in loaded for b in range(4)]

    def _tile(self, block: Any, token: Any, count: int, width: int, scratch: Any | None) -> None:
        r, x, inputs = self.rows, self.k["x"], self.k["K"]
        first, start = let(block), let(token)
        acc = [T.alloc_buffer((r,), "float32") for _ in range(count * width)]
        for one in acc:
            store(one, 0, splat(0.0, r), r)
        # Dense steps are one input each: unrolling by four keeps several loads in flight.
        with T.serial(0, self.steps) as step:
            weights = (
                [self._weights(let(first + b), step) for b in range(width)]
                if scratch is None
                else None
            )
            for j in range(self.chunk):
                for b in range(width):
                    w = (
                        weights[b][j]
                        if weights is not None
                        else let(load(scratch, ((step * self.chunk + j) * width + b) * r, r))
                    )
                    for m in range(count):
                        value = T.broadcast(x[(start + m) * inputs + step * self.chunk + j], r)
                        one = acc[m * width + b]
                        store(one, 0, T.fma(w, value, load(one, 0, r)), r)
        epilogue = Epilogue(self.k, r, bias=self.bias, residual=self.residual)
        epilogue.store([load(one, 0, r) for one in acc], start, first, count, width)
