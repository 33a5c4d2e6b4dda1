"""linear with int8 activations in TensorIR: quantized weights, integer dot products, float32
accumulation over groups.

An activation code has one int8 plane or two (15 bits, see `operators/quantized.py`): the dot
product of each plane, 128·high + low. For a group of 32 k, row block and token: `acc += xs·(s·dot
− m·isum)` with the integer dot product of the codes, the activation's scale xs and code sum isum,
and the weight's scale s and minimum m (m = zero·s for a symmetric format). With two planes xs is
the row's, and multiplies at the end.

Floors: a token must read every weight once (bytes over bandwidth); T tokens must do T·N·K
multiply-adds (over the dot unit's rate). Up to `DIRECT` tokens the codes are unpacked in
registers for each tile of tokens, which memory hides; above, a block of rows is unpacked once
into scratch that stays in the first cache levels and meets all tokens. With 32 registers and VNNI
tiles of 8 tokens unpack codes themselves, however many tokens there are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm.tirx.script.builder import ir as T

from pumice.operators.base import KernelSource, OperatorCall
from pumice.operators.linear.dot import DotUnit, Generic, Vnni, unit_for
from pumice.operators.linear.epilogue import Epilogue
from pumice.operators.linear.int8_direct import direct
from pumice.operators.linear.int8_panel import panel
from pumice.operators.linear.int8_problem import GROUP, Problem
from pumice.operators.linear.int8_wide import COUNT, wide
from pumice.operators.tir.base import CpuKernel
from pumice.operators.tir.builder import SIZE, kernel, when
from pumice.operators.tir.vector import let
from pumice.quantization.base import QuantFormat
from pumice.targets import Target

# Tokens up to which codes are unpacked in registers. With VNNI a tile's arithmetic is short, and
# the panel's scratch pays off late.
DIRECT, DIRECT_VNNI = 16, 64


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
        # Tokens × row blocks of a register tile; tokens must divide 8, the rows that buffers pad
        # to. 4 × 2 needs 6 loads for 8 products.
        if target.has("vnni"):
            return ({"tokens": COUNT, "blocks": 1},)
        return (
            {"tokens": 4, "blocks": 2},
            {"tokens": 4, "blocks": 1},
            {"tokens": 2, "blocks": 2},
            {"tokens": 8, "blocks": 1},
        )

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
            f"pumice_linear_int8_{fmt.bits}bit_g{fmt.group}{scale}"
            f"{'m' if fmt.has_min else f'z{fmt.zero}'}"
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
            _build(k, fmt, layout.rows, unit, config, bias=bias, residual=residual, planes=planes)
        self._built[symbol] = k.source()
        return self._built[symbol]


def _in_wide_tiles(unit: DotUnit) -> bool:
    """AVX-512: AVX-VNNI has the instruction, but 16 registers."""
    return isinstance(unit, Vnni) and unit.lanes == 16


def _build(
    k: Any,
    fmt: QuantFormat,
    rows: int,
    unit: DotUnit,
    config: Mapping[str, int],
    *,
    bias: bool,
    residual: bool,
    planes: int,
) -> None:
    tokens = k["T"]
    groups = let(k["K"] // GROUP)
    blocks = let((k["N"] + (rows - 1)) // rows)
    tiles = _in_wide_tiles(unit)
    epilogue = Epilogue(
        k, rows, bias=bias, residual=residual, scaled=planes == 2, fused=tiles and planes == 2
    )
    inputs = let(k["K"] // T.max(groups, T.int32(1)))
    p = Problem(k, fmt, rows, unit, planes, epilogue, groups, blocks, inputs)
    with when(tokens == 1):
        direct(p, 1, 2)
    with when(tokens == 2):
        direct(p, 2, 1)
    if tiles:
        with when(tokens > 2):
            wide(p)
        return
    with when(T.And(tokens > 2, tokens <= DIRECT)):
        direct(p, 4, 1)
    last = DIRECT
    if isinstance(unit, Vnni):
        last = DIRECT_VNNI
        with when(T.And(tokens > DIRECT, tokens <= last)):
            direct(p, 8, 1)
    with when(tokens > last):
        panel(p, config)
