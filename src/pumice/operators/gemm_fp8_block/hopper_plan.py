"""Launches of the warp-specialized kernel for Hopper's matrix units."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.operators.gemm.product import Product, fault, of_problem
from pumice.operators.gemm_fp8_block.hopper_triton import fp8_block_specialized
from pumice.operators.gemm_fp8_block.triton_plan import check_blocks, scale_strides
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, TensorSpec, cdiv
from pumice.targets import Target

# Columns of a tile of 128 rows, and as many stages of blocks of K as shared memory has room for.
_TILES = ((256, 4), (128, 6))
_GROUPS = (8, 16)
_BM = _BK = 128
_REGISTERS = 168  # of each of 384 lanes: all that a unit has. Groups of warps trade theirs.
_DESCRIPTORS = 2 * 128  # bytes: of x and w, which every program makes for itself
_LEAST_ROWS = 129


class BlockSpecialized:
    """One program a unit, which goes through its tiles: one warp loads, two groups multiply."""

    name = "gemm_fp8_block.triton.specialized"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if target.matrix_unit != "wgmma":
            return f"{target.name} has no wgmma, which this kernel is made of (sm_90)"
        found = fault(problem, target, ("float8_e4m3fn",)) or check_blocks(problem)
        if found is not None:
            return found
        product = of_problem(problem)
        if not product.aligned:
            return "rows of x and w must begin at multiples of 16 bytes"
        if 0 < product.M < _LEAST_ROWS:
            return f"x has {product.M} rows; tiles of {_BM} rows take {_LEAST_ROWS} or more"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        product = of_problem(problem)
        tiles = sorted(_TILES, key=lambda tile: _cost(product, target, tile[0]))
        return [
            {"BM": _BM, "BN": bn, "BK": _BK, "stages": stages, "group": group}
            for group in _GROUPS
            for bn, stages in tiles
        ]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        if product.empty:
            return Plan(())
        count, whole = _split(product, target, config["BN"])
        programs = min(target.compute_units, whole + 2 * (count - whole))
        names = set(fp8_block_specialized.arg_names)
        given = product.arguments() | scale_strides(problem) | {"M": product.M, "whole": whole}
        constants = product.constants() | {
            "BM": config["BM"], "BN": config["BN"], "BK": config["BK"],
            "STAGES": config["stages"], "GROUP_M": config["group"],
        }  # fmt: skip
        launch = Launch(
            fp8_block_specialized, (programs, 1, 1),
            {name: value for name, value in given.items() if name in names},
            {name: value for name, value in constants.items() if name in names},
            num_warps=4, num_stages=1, options={"cuda": {"maxnreg": _REGISTERS}},
            scratch="descriptors",
        )  # fmt: skip
        return Plan((launch,), {"descriptors": TensorSpec((programs, _DESCRIPTORS), "int8")})


def _split(product: Product, target: Target, bn: int) -> tuple[int, int]:
    """Tiles, and how many of them are done whole: those of a last, partial wave are halved where
    one wave then still has room for all."""
    count = cdiv(product.M, _BM) * cdiv(product.N, bn)
    rest = count % target.compute_units
    return count, count - rest if bn == 256 and 2 * rest <= target.compute_units else count


def _cost(product: Product, target: Target, bn: int) -> float:
    """Columns that the busiest unit does; a narrow tile reads more for each."""
    count, whole = _split(product, target, bn)
    wide, narrow = (whole, 2 * (count - whole)) if bn == 256 else (0, count)
    units = target.compute_units
    return 256.0 * cdiv(wide, units) + 1.15 * 128 * cdiv(narrow, units)
