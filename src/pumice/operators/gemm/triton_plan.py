"""Launches of `gemm`, and of the operators that are it with other types or scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.gemm import tiles
from pumice.operators.gemm.gemv_triton import gemv
from pumice.operators.gemm.kernel_triton import gemm_reduce, gemm_tile
from pumice.operators.gemm.product import FLOATS, Product, fault, of_problem, precision, upcasts
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

_GEMV_ROWS = 8
_GRID_Y = 65535


class _Family:
    """What the kernels of a product share. A subclass of another operator sets dtypes and rank."""

    dtypes: tuple[str, ...] = FLOATS
    rank = 2

    def check(self, problem: Problem) -> str | None:
        """Faults of an operator's own: its scales."""
        return None

    def base_fault(self, problem: Problem, target: Target) -> str | None:
        found = fault(problem, target, self.dtypes, self.rank) or self.check(problem)
        if found is None and self.rank == 3 and problem["x"].shape[0] > _GRID_Y:
            return f"{problem['x'].shape[0]} batches are more than a grid has ({_GRID_Y})"
        return found


def on_vector_unit(product: Product, target: Target) -> bool:
    """float32 products in full precision, where the matrix unit has none."""
    full = product.dtype == "float32" and precision(product.problem, target) == "ieee"
    return full and target.matrix_unit != "mfma"


def dies(target: Target) -> int:
    """Dies of one device that have an L2 of their own: 8 on the large CDNA parts."""
    return 8 if target.matrix_unit == "mfma" and target.compute_units > 200 else 1


def tile_launches(
    product: Product, target: Target, config: Config, whole: int | None = None
) -> Plan:
    """The tile kernel, and the reduction when tiles after the first `whole` are split.

    whole: None when no tile is split.
    """
    if product.empty:
        return Plan(())
    bm, bn, bk = config["BM"], config["BN"], config["BK"]
    tiles_m = cdiv(product.M, bm)
    count = tiles_m * cdiv(product.N, bn)
    slice_k = cdiv(cdiv(max(product.K, 1), config["split"]), bk) * bk
    split = cdiv(max(product.K, 1), slice_k)
    if whole is None or split == 1:
        whole, split = count, 1
    tail = count - whole
    group = 8 if tiles_m > 8 else next_power_of_2(tiles_m)
    order = {"BM": bm, "BN": bn, "GROUP_M": group}
    arguments = product.arguments() | {
        "M": product.M, "whole": whole, "split": split, "slice_k": slice_k,
    }  # fmt: skip
    constants: dict[str, Any] = order | product.constants() | {
        "BK": bk, "DIES": dies(target), "EVEN_K": product.K % bk == 0, "SPLIT": tail > 0,
        "PRECISION": precision(product.problem, target), "UPCAST": upcasts(product.dtype, target),
        "PROMOTE": product.dtype in target.dtypes and product.itemsize == 1
        and product.dtype != "int8" and target.api == "cuda",
    }  # fmt: skip
    workspaces = {}
    if tail:
        kind = "int32" if product.dtype == "int8" else "float32"
        workspaces["partial"] = TensorSpec((product.B, tail, split, bm, bn), kind)
        arguments["partial"] = "partial"
    else:
        constants["partial"] = None
    launches = [
        Launch(
            gemm_tile, (whole + tail * split, product.B, 1), arguments, constants,
            num_warps=config["warps"], num_stages=config["stages"],
            options=tiles.options(config, target),
        )
    ]  # fmt: skip
    if tail:
        launches.append(_reduction(product, arguments, order, tail))
    return Plan(tuple(launches), workspaces)


def _reduction(
    product: Product, arguments: dict[str, Any], order: dict[str, int], tail: int
) -> Launch:
    rows = max(1, min(order["BM"], 512 // order["BN"]))
    used = min(order["BM"], product.M)
    names = gemm_reduce.arg_names
    return Launch(
        gemm_reduce, (tail, cdiv(used, rows), product.B),
        {name: value for name, value in arguments.items() if name in names},
        {**order, **product.constants(), "RM": rows},
        num_warps=4 if rows * order["BN"] >= 512 else 1, num_stages=1,
    )  # fmt: skip


class GemmTiled(_Family):
    """Whole tiles of the output, one a program."""

    name = "gemm.triton.tiled"

    def supports(self, problem: Problem, target: Target) -> str | None:
        return self.base_fault(problem, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        product = of_problem(problem)
        found = tiles.tiles_for(product, target, vector=on_vector_unit(product, target))
        return tiles.ordered(product, target, found)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        return tile_launches(of_problem(problem), target, config)


class GemmSplitK(_Family):
    """Every tile in slices of K, added in a second launch in fixed order: bit-equal runs.

    For outputs with fewer tiles than the device has compute units.
    """

    name = "gemm.triton.split_k"

    def supports(self, problem: Problem, target: Target) -> str | None:
        found = self.base_fault(problem, target)
        if found is None and not of_problem(problem).empty and not self._tiles(problem, target):
            return "K is too short, or tiles are too many, to split"
        return found

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        if of_problem(problem).empty:
            return GemmTiled.configs(self, problem, target)  # type: ignore[arg-type]
        return tiles.ordered(of_problem(problem), target, self._tiles(problem, target))

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        return tile_launches(of_problem(problem), target, config, whole=0)

    def _tiles(self, problem: Problem, target: Target) -> list[tiles.Tile]:
        product = of_problem(problem)
        found = tiles.tiles_for(product, target, vector=on_vector_unit(product, target))
        return tiles.with_splits(product, target, found)


class GemmStreamK(_Family):
    """Whole tiles while they fill the device; the last, partial wave is split along K.

    The data-parallel hybrid of Stream-K (Osama et al., arXiv:2301.03598), with slices of equal
    length and a second launch that adds them in fixed order.
    """

    name = "gemm.triton.stream_k"

    def supports(self, problem: Problem, target: Target) -> str | None:
        found = self.base_fault(problem, target)
        if found is None and not of_problem(problem).empty and not self._tiles(problem, target):
            return "there is no partial last wave after a full one"
        return found

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        if of_problem(problem).empty:
            return GemmTiled.configs(self, problem, target)  # type: ignore[arg-type]
        return tiles.ordered(of_problem(problem), target, self._tiles(problem, target), most=6)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        whole = 0 if product.empty else self._whole(product, target, config["BM"], config["BN"])
        return tile_launches(product, target, config, whole=whole)

    @staticmethod
    def _whole(product: Product, target: Target, bm: int, bn: int) -> int:
        count = cdiv(product.M, bm) * cdiv(product.N, bn)
        return count // target.compute_units * target.compute_units

    def _tiles(self, problem: Problem, target: Target) -> list[tiles.Tile]:
        product = of_problem(problem)
        found = []
        for tile in tiles.tiles_for(product, target, vector=on_vector_unit(product, target)):
            whole = self._whole(product, target, tile.BM, tile.BN)
            tail = cdiv(product.M, tile.BM) * cdiv(product.N, tile.BN) - whole
            if not whole or not tail or product.B > 1:
                continue
            split = min(16, target.compute_units // tail, product.K // (2 * tile.BK))
            if split > 1:
                found.append(tiles.Tile(tile.BM, tile.BN, tile.BK, tile.warps, tile.stages, split))
        return found


class GemmVector(_Family):
    """Few rows of x: lanes multiply, at the speed of reading w."""

    name = "gemm.triton.gemv"

    def supports(self, problem: Problem, target: Target) -> str | None:
        found = self.base_fault(problem, target)
        if found is None and problem["x"].shape[-2] > _GEMV_ROWS:
            return f"x has {problem['x'].shape[-2]} rows; at most {_GEMV_ROWS} can be"
        return found

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        product = of_problem(problem)
        vector = 16 // product.itemsize
        found: list[Config] = []
        for bn, warps in ((4, 4), (8, 4), (2, 4), (1, 8), (2, 8), (4, 2), (8, 2), (16, 2), (1, 4),
                          (4, 1), (8, 1), (2, 1)):  # fmt: skip
            block = vector * target.wave * warps
            wide = block >= 2 * max(product.K, 1) and warps > 1
            if bn * product.M > 64 or wide or warps * target.wave > 512:
                continue
            found.append({"BN": bn, "BK": block, "warps": warps, "vector": vector})
        return sorted(found, key=lambda config: self._seconds(product, target, config))

    @staticmethod
    def _seconds(product: Product, target: Target, config: Config) -> float:
        """Padding of K and of the last wave; a unit keeps about 1024 lanes with loads in flight."""
        programs = max(1, cdiv(product.N, config["BN"]) * product.B)
        held = max(1, 1024 // (config["warps"] * target.wave))
        slots = held * target.compute_units
        padded = cdiv(product.K, config["BK"]) * config["BK"] / max(product.K, 1)
        flying = min(programs, slots) * config["BN"] * config["BK"] * product.itemsize
        reach = min(1.0, flying / ((target.bandwidth or 1e12) * 1e-6))
        waves = programs / slots
        steps = max(1.0, waves) if waves > 4 else cdiv(programs, slots)
        return padded * steps / min(max(waves, 1e-9), steps) / reach * (1 + 0.1 / config["BN"])

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        if product.empty:
            return Plan(())
        constants = product.constants() | {
            "M": product.M, "BN": config["BN"], "BK": config["BK"], "VECTOR": config["vector"],
            "EVEN_K": product.K % config["BK"] == 0,
        }  # fmt: skip
        launch = Launch(
            gemv, (cdiv(product.N, config["BN"]), product.B, 1), product.arguments(), constants,
            num_warps=config["warps"], num_stages=1,
        )  # fmt: skip
        return Plan((launch,))
