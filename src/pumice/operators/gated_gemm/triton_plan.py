"""Launches of `gated_gemm`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pumice.operators.gated_gemm.kernel_triton import gated_tile
from pumice.operators.gemm import tiles
from pumice.operators.gemm.product import FP8, fault, of_problem, upcasts
from pumice.operators.gemm.triton_plan import dies
from pumice.operators.gemm_fp8_block.tiles8 import tiles8
from pumice.operators.gemm_fp8_block.triton_plan import GROUP, check_blocks, scale_strides
from pumice.operators.triton.plan import (
    Config,
    Launch,
    Plan,
    Problem,
    TensorSpec,
    cdiv,
    next_power_of_2,
)
from pumice.targets import Target

_DTYPES = ("bfloat16", "float16", *FP8)


class GatedTiled:
    """Tiles of gate and up with the same columns, one pair a program."""

    name = "gated_gemm.triton.tiled"

    def supports(self, problem: Problem, target: Target) -> str | None:
        w, out = problem["w"], problem["out"]
        if len(w.shape) != 2 or w.shape[0] % 2:
            return f"w has shape {w.shape}; an even number of rows is needed, gate then up"
        if out.shape != (problem["x"].shape[0], w.shape[0] // 2):
            return f"out has shape {out.shape}; half of w's rows wide is needed"
        both = Problem(
            problem.operator,
            {**problem.tensors, "out": TensorSpec((out.shape[0], w.shape[0]), out.dtype)},
            problem.attrs,
        )
        found = fault(both, target, _DTYPES)
        if found or problem["x"].dtype not in FP8:
            return found
        if w.shape[0] // 2 % GROUP:
            return f"F is {w.shape[0] // 2}; with block scales it must be a multiple of {GROUP}"
        return check_blocks(problem)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        """Shapes of the family, each column twice: half as wide as the tile that fits."""
        product = of_problem(problem)
        fp8 = product.dtype in FP8
        found = tiles8(product, target) if fp8 else tiles.tiles_for(product, target)
        # Two fragments of w at a time do not fit beside the largest sums.
        crowded = target.matrix_unit == "mma" or (target.matrix_unit == "tcgen05" and fp8)
        most = 64 if crowded else 256  # sums of a lane
        fits = [
            tile
            for tile in found
            if tile.BN >= 32
            and not tile.BN & (tile.BN - 1)
            and tile.BM * tile.BN <= most * tile.warps * target.wave
        ]
        halved = [replace(tile, BN=max(16, tile.BN // 2), halves=1) for tile in fits]
        # Ordered by the whole tile, which is what a program multiplies.
        order = sorted(range(len(fits)), key=lambda i: tiles.seconds(product, target, fits[i])) or [
            0
        ]
        chosen = halved or [replace(found[0], BN=min(found[0].BN, GROUP), halves=1)]
        return [chosen[i].config() for i in order[:12]]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        width = product.N // 2
        if product.M == 0 or width == 0:
            return Plan(())
        bm, bn, bk = config["BM"], config["BN"], config["BK"]
        tiles_m = cdiv(product.M, bm)
        blocks = product.dtype in FP8
        strides = scale_strides(problem) if blocks else dict.fromkeys(
            ("stride_sm", "stride_sk", "stride_tn", "stride_tk"), 0
        )  # fmt: skip
        arguments: dict[str, str | int | float] = {
            "x": "x", "w": "w", "out": "out", "M": product.M, "F": width, "K": product.K,
            "stride_xm": product.strides("x")[1], "stride_wn": product.strides("w")[1],
            "stride_om": product.strides("out")[1], **strides,
        }  # fmt: skip
        constants: dict[str, Any] = {
            "BM": bm, "BN": bn, "BK": bk, "GROUP_M": 8 if tiles_m > 8 else next_power_of_2(tiles_m),
            "DIES": dies(target), "EVEN_K": product.K % bk == 0,
            "ACTIVATION": str(problem.attrs.get("activation", "silu")), "BLOCKS": blocks,
            "UPCAST": upcasts(product.dtype, target),
        }  # fmt: skip
        scales = ("x_scale", "w_scale")
        if blocks:
            arguments |= {name: name for name in scales}
        else:
            constants |= dict.fromkeys(scales)
        launch = Launch(
            gated_tile, (tiles_m * cdiv(width, bn), 1, 1), arguments, constants,
            num_warps=config["warps"], num_stages=config["stages"],
            options=tiles.options(config, target),
        )  # fmt: skip
        return Plan((launch,))
