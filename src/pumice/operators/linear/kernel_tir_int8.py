"""linear with int8 activations in TensorIR: quantized weights, integer dot products, float32 accumulation over groups.

An activation code has one int8 plane or two (15 bits, see `operators/quantized.py`): the dot product of each plane, 128·high + low.
For a group of 32 k, row block and token: `acc += xs·(s·dot − m·isum)` with the integer dot product of the codes, the activation's scale xs
and code sum isum, and the weight's scale s and minimum m (m = zero·s for a symmetric format).

Floors: a token must read every weight once (bytes over bandwidth); T tokens must do T·N·K multiply-adds (over the dot unit's rate). Up to
`DIRECT` tokens the codes are unpacked in registers for each tile of tokens, which memory hides; above, a block of rows is
unpacked once into scratch that stays in the first cache levels and meets all tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.linear.dot import DotUnit, Generic, unit_for
from pumice.operators.linear.epilogue import store_rows
from pumice.operators.tir.base import CpuKernel
from pumice.operators.tir.builder import SIZE, kernel, tasks, when
from pumice.operators.tir.vector import cast, let, load, splat, splat_int, store
from pumice.quantization.base import QuantFormat
from pumice.targets import Target

DIRECT = 16  # tokens up to which codes are unpacked in registers
GROUP = 32  # activation group


class LinearInt8(CpuKernel):
    """Affine weights whose K is a multiple of 32."""

    name = "linear.tir.int8"
    generic = False  # use plain arithmetic instead of the target's dot instructions

    def supports(self, call: OperatorCall, target: Target) -> str | None:
        if target.api != "cpu":
            return f"made for the CPU, not for {target.api}"
        fmt, _ = call.weights["w"]
        if not fmt.affine:
            return f"the weight is {fmt.name}, which has no codes"
        if call.attrs.get("activations") == "float32":
            return "the call keeps its activations in float32"
        if fmt.group not in (16, 32):
            return f"groups of {fmt.group} are not 16 or 32"
        if int(call.attrs["K"]) % GROUP:
            return f"K={call.attrs['K']} is no multiple of {GROUP}"
        return None

    def __init__(self) -> None:
        self._built: dict[str, KernelSource] = {}

    def configs(self, call: OperatorCall, target: Target) -> Sequence[Mapping[str, int]]:
        # Tokens × row blocks of a register tile. AVX2 has 16 registers: two row blocks spill there (measured 73 GMAC/s on
        # one Zen 3 core against 81), AVX-512 and Arm have 32.
        tiles = ({"tokens": 4, "blocks": 2}, {"tokens": 4, "blocks": 1}, {"tokens": 2, "blocks": 2})
        return tiles if target.has("avx512") or target.has("dotprod") else (tiles[1], tiles[0], tiles[2])

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        fmt, layout = call.weights["w"]
        unit = (
            Generic(layout.rows, fmt.code_max)
            if self.generic
            else unit_for(target, layout.rows, fmt.code_max)
        )
        bias, residual = bool(call.attrs["bias"]), bool(call.attrs["residual"])
        planes = int(call.attrs.get("planes", 1))
        scale = "h" if fmt.scale_dtype == "float16" else "f"
        symbol = (
            f"pumice_linear_int8_{fmt.bits}bit_g{fmt.group}{scale}{'m' if fmt.has_min else f'z{fmt.zero}'}"
            f"_r{layout.rows}_{unit.name}_p{planes}_t{config['tokens']}b{config['blocks']}"
            f"{'_bias' if bias else ''}{'_residual' if residual else ''}"
        )
        parameters = {"x_codes": "uint32", "x_scales": "float32", "x_sums": "float32"}
        parameters |= {"w.codes": "uint32", "w.scales": fmt.scale_dtype}
        if fmt.has_min:
            parameters["w.mins"] = fmt.scale_dtype
        if bias:
            parameters["bias"] = "float32"
        if residual:
            parameters["residual"] = "float32"
        parameters |= {"out": "float32", "T": SIZE, "N": SIZE, "K": SIZE}
        if symbol in self._built:  # sizes are arguments: a model has many calls and few symbols
            return self._built[symbol]
        with kernel(symbol, parameters) as k:
            _Body(k, fmt, layout.rows, unit, config, bias, residual, planes).build()
        self._built[symbol] = k.source()
        return self._built[symbol]


@dataclass
class _Body:
    """The loops of one kernel."""

    k: Any
    fmt: QuantFormat
    rows: int
    unit: DotUnit
    config: Mapping[str, int]
    bias: bool
    residual: bool
    planes: int

    def build(self) -> None:
        tokens, n = self.k["T"], self.k["N"]
        self.groups = let(self.k["K"] // GROUP)
        self.blocks = let((n + (self.rows - 1)) // self.rows)
        for count in (1, 2):
            with when(tokens == count):
                self._direct(count, 2 if count == 1 else 1)
        with when(T.And(tokens > 2, tokens <= DIRECT)):
            self._direct(4, 1)
        with when(tokens > DIRECT):
            self._panel()

    # -- few tokens --------------------------------------------------------------------------

    def _direct(self, count: int, width: int) -> None:
        """Row blocks in parallel; codes unpacked in registers for each tile of `count` tokens."""
        pairs = let(self.blocks // width)
        tiles = let((self.k["T"] + (count - 1)) // count)
        with tasks(pairs, parallel=True) as pair:
            with T.serial(0, tiles) as tile:
                self._tile(pair * width, tile * count, count, width, None)
        if width > 1:
            with when(pairs * width < self.blocks):
                with T.serial(0, tiles) as tile:
                    self._tile(pairs * width, tile * count, count, 1, None)

    # -- many tokens -------------------------------------------------------------------------

    def _panel(self) -> None:
        """`blocks` row blocks are unpacked into scratch, which then meets all tokens."""
        count, width = int(self.config["tokens"]), int(self.config["blocks"])
        tiles = let((self.k["T"] + (count - 1)) // count)
        panels = let((self.blocks + (width - 1)) // width)
        # A panel's codes: K bytes a row. Row blocks past the last are not read (the tile is narrower).
        with tasks(panels, parallel=True) as panel:
            scratch = T.alloc_buffer((self.k["K"] * (self.rows * width // 4),), "uint32")
            full = (panel + 1) * width <= self.blocks
            with when(full):
                self._panel_tiles(panel * width, tiles, count, width, scratch)
            if width > 1:
                with when(T.Not(full)):
                    with T.serial(0, self.blocks - panel * width) as rest:
                        self._panel_tiles(panel * width + rest, tiles, count, 1, scratch)

    def _panel_tiles(self, block: Any, tiles: Any, count: int, width: int, scratch: Any) -> None:
        steps = GROUP // 4
        r = self.rows
        with T.serial(0, self.groups) as g:
            for b in range(width):
                for j, codes in enumerate(self._unpack(let(block + b), g)):
                    where = ((g * steps + j) * width + b) * r
                    store(scratch, where, self.unit.prepare(codes), r)
        with T.serial(0, tiles) as tile:
            self._tile(block, tile * count, count, width, scratch)

    # -- a register tile ---------------------------------------------------------------------

    def _unpack(self, block: Any, group: Any) -> list[Any]:
        """The 8 code vectors (4 k each) of a row block and activation group, in the order of k."""
        r, codes = self.rows, self.k["w.codes"]
        if self.fmt.code_bits == 8:
            base = let((block * self.groups + group) * (8 * r))
            return [let(load(codes, base + j * r, r)) for j in range(8)]
        mask = splat_int(0x0F0F0F0F, r, "uint32")
        base = let((block * self.groups + group) * (4 * r))
        per = self.fmt.group // 8  # packed vectors of a weight group
        out: list[Any] = []
        for sub in range(GROUP // self.fmt.group):
            packed = [let(load(codes, base + (sub * per + j) * r, r)) for j in range(per)]
            out += [let(p & mask) for p in packed]
            out += [let((p >> splat_int(4, r, "uint32")) & mask) for p in packed]
        return out

    def _tile(self, block: Any, token: Any, count: int, width: int, scratch: Any | None) -> None:
        """acc[count tokens, width row blocks] over all groups, then the epilogue."""
        r = self.rows
        first = let(block)
        start = let(token)
        acc = [T.alloc_buffer((r,), "float32") for _ in range(count * width)]
        for one in acc:
            store(one, 0, splat(0.0, r), r)
        subs = GROUP // self.fmt.group
        with T.serial(0, self.groups) as g:
            for sub in range(subs):
                self._group(acc, first, start, g, sub, count, width, scratch)
        for m in range(count):
            for b in range(width):
                value = load(acc[m * width + b], 0, r)
                store_rows(self.k, value, start + m, first + b, r, self.bias, self.residual)

    def _group(
        self, acc: Any, block: Any, token: Any, g: Any, sub: int, count: int, width: int, scratch: Any
    ) -> None:
        """Adds one weight group (32 or 16 k)."""
        r, unit, words = self.rows, self.unit, self.k["x_codes"]
        per_group = self.fmt.group // 4
        partial: dict[tuple[int, int, int], Any] = {}
        total: dict[tuple[int, int], Any] = {}
        unpacked = (
            [self._unpack(let(block + b), g) for b in range(width)] if scratch is None else None
        )
        window = range(sub * per_group, (sub + 1) * per_group)
        # Codes in registers meet both planes at once; codes in scratch are cheap to load again, registers are not.
        order = (
            [(j, plane) for j in window for plane in range(self.planes)]
            if unpacked is not None
            else [(j, plane) for plane in range(self.planes) for j in window]
        )
        for j, plane in order:
            codes = [
                unit.prepare(unpacked[b][j])
                if unpacked is not None
                else let(load(scratch, ((g * 8 + j) * width + b) * r, r))
                for b in range(width)
            ]
            for m in range(count):
                row = (token + m) * (self.groups * (8 * self.planes))
                x = let(T.broadcast(words[row + g * (8 * self.planes) + (plane * 8 + j)], r))
                for b in range(width):
                    key = (plane, m, b)
                    partial[key] = unit.product(codes[b], x, partial.get(key))
                    if (j - window.start + 1) % unit.steps == 0 or j == window[-1]:
                        self._widen(total, key, partial.pop(key))
        self._accumulate(acc, total, block, token, g, sub, count, width)

    def _widen(self, total: dict[tuple[int, int], Any], key: tuple[int, int, int], part: Any) -> None:
        plane, m, b = key
        wide = self.unit.widen(part, 128 if plane < self.planes - 1 else 1)
        before = total.get((m, b))
        total[m, b] = let(wide if before is None else before + wide)

    def _accumulate(
        self, acc: Any, total: Any, block: Any, token: Any, g: Any, sub: int, count: int, width: int
    ) -> None:
        r, fmt = self.rows, self.fmt
        subs = GROUP // fmt.group
        zero = fmt.zero - self.unit.zero_shift
        where = [let(((block + b) * (self.groups * subs) + g * subs + sub) * r) for b in range(width)]
        scales = [let(cast(load(self.k["w.scales"], w, r), "float32", r)) for w in where]
        mins = (
            [let(cast(load(self.k["w.mins"], w, r), "float32", r)) for w in where]
            if fmt.has_min
            else None
        )
        for m in range(count):
            row = token + m
            xs = let(T.broadcast(self.k["x_scales"][row * self.groups + g], r))
            needs_sum = fmt.has_min or zero
            if needs_sum:
                isum = self.k["x_sums"][row * (self.groups * subs) + g * subs + sub]
                sums = let(T.broadcast(isum, r))
            for b in range(width):
                t = let(cast(total[m, b], "float32", r))
                if mins is not None:
                    # s·t − m·isum
                    u = T.fma(splat(-1.0, r) * mins[b], sums, scales[b] * t)
                elif zero:
                    u = scales[b] * T.fma(splat(float(-zero), r), sums, t)
                else:
                    u = scales[b] * t
                one = acc[m * width + b]
                store(one, 0, T.fma(xs, u, load(one, 0, r)), r)
