"""Launches of `gemm`, and of the operators that are it with other types or scales."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pumice.operators.gemm import tiles
from pumice.operators.gemm.family import Cut, SplitK, StreamK, Tiled, Vector
from pumice.operators.gemm.gemv_triton import gemv
from pumice.operators.gemm.kernel_triton import gemm_reduce, gemm_tile
from pumice.operators.gemm.product import Product, of_problem, precision, upcasts
from pumice.operators.triton.float8 import bitwise
from pumice.operators.triton.plan import (
    Config,
    Launch,
    Plan,
    Problem,
    TensorSpec,
    begins_early,
    cdiv,
    next_power_of_2,
)
from pumice.targets import Target

_SHORT = 2**33  # multiplications with additions, about 25 µs of a Hopper
_LEAST_ROWS = 128  # from which on a short product is tried with an early begin
_EARLY = 8


def on_vector_unit(product: Product, target: Target) -> bool:
    """float32 products in full precision, where the matrix unit has none."""
    full = product.dtype == "float32" and precision(product.problem, target) == "ieee"
    return full and target.matrix_unit != "mfma"


def dies(target: Target) -> int:
    """Dies of one device that have an L2 of their own: 8 on the large CDNA parts."""
    return 8 if target.matrix_unit == "mfma" and target.compute_units > 200 else 1


def tile_launches(
    kernel: Any,
    product: Product,
    target: Target,
    config: Config,
    whole: int | None,
    own_constants: Mapping[str, Any],
    own_arguments: Mapping[str, int] | None = None,
) -> Plan:
    """A tile kernel, and the reduction when tiles after the first `whole` (None: all) are split.

    own_constants, own_arguments: those that this kernel has beyond the family's.
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
    group = config.get("group") or (8 if tiles_m > 8 else next_power_of_2(tiles_m))
    arguments = product.arguments() | {
        "M": product.M, "whole": whole, "split": split, "slice_k": slice_k,
    } | dict(own_arguments or {})  # fmt: skip
    constants: dict[str, Any] = product.constants() | {
        "BM": bm, "BN": bn, "BK": bk, "GROUP_M": group, 
        "DIES": dies(target), "EVEN_K": product.K % bk == 0, "SPLIT": tail > 0,
    } | dict(own_constants)  # fmt: skip
    workspaces = {}
    if tail:
        kind = "int32" if product.dtype == "int8" else "float32"
        workspaces["partial"] = TensorSpec((product.B, tail, split, bm, bn), kind)
        arguments["partial"] = "partial"
    else:
        constants["partial"] = None
    launches = [
        Launch(
            kernel, (whole + tail * split, product.B, 1), arguments, constants,
            num_warps=config["warps"], num_stages=config["stages"],
            options=tiles.options(config, target),
        )
    ]  # fmt: skip
    if tail:
        early = {"EARLY": config.get("early", 0)}
        launches.append(_reduction(product, arguments, {**constants, **early}, tail))
    return Plan(tuple(launches), workspaces)


def _reduction(
    product: Product, arguments: Mapping[str, Any], constants: Mapping[str, Any], tail: int
) -> Launch:
    bm, bn = constants["BM"], constants["BN"]
    rows = max(1, min(bm, 512 // bn))
    used = min(bm, product.M)
    names = gemm_reduce.arg_names
    shared = {name: value for name, value in constants.items() if name in names}
    return Launch(
        gemm_reduce, (tail, cdiv(used, rows), product.B),
        {name: value for name, value in arguments.items() if name in names},
        {**shared, "RM": rows}, num_warps=4 if rows * bn >= 512 else 1, num_stages=1,
        options={"cuda": {"launch_pdl": True}} if constants["EARLY"] else {},
    )  # fmt: skip


class Dense(Cut):
    """Sums stay in the matrix unit until K ends."""

    def candidates(self, product: Product, target: Target) -> list[tiles.Tile]:
        return tiles.tiles_for(product, target, vector=on_vector_unit(product, target))

    def launches(
        self, product: Product, target: Target, config: Config, whole: int | None = None
    ) -> Plan:
        own: dict[str, Any] = {
            "PRECISION": precision(product.problem, target),
            "UPCAST": upcasts(product.dtype, target),
            "EARLY": config.get("early", 0),
        }
        own["BN"], own["BN2"] = tiles.widths(config["BN"])
        return tile_launches(gemm_tile, product, target, config, whole, own)


class DenseVector(Vector):
    """`gemv`, with scales for a whole row or tensor if any."""

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        if product.empty:
            return Plan(())
        constants = product.constants() | {
            "M": product.M, "BN": config["BN"], "BK": config["BK"], "VECTOR": config["vector"],
            "EVEN_K": product.K % config["BK"] == 0, "UPCAST": bitwise(product.dtype, target),
            "EARLY": config.get("early", 0),
        }  # fmt: skip
        launch = Launch(
            gemv, (cdiv(product.N, config["BN"]), product.B, 1), product.arguments(), constants,
            num_warps=config["warps"], num_stages=1,
            options={"cuda": {"launch_pdl": True}} if config.get("early") else {},
        )  # fmt: skip
        return Plan((launch,))


def few_rows_early(configs: Sequence[Config], problem: Problem, target: Target) -> list[Config]:
    """Candidates, and for few rows the best of them that begin early, where the GPU has that."""
    if not begins_early(target) or problem["x"].shape[-2] >= _LEAST_ROWS:
        return list(configs)
    return [*configs, *({**config, "early": 2} for config in configs[:_EARLY])]


class GemmTiled(Dense, Tiled):
    """config "early", for products that take little longer than a launch: begins before the launch
    in front of it has ended."""

    name = "gemm.triton.tiled"

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        found = few_rows_early(super().configs(problem, target), problem, target)
        product = of_problem(problem)
        if begins_early(target):
            deep = [tile.config() for tile in tiles.deep(product, target)]
            found += [{**config, "early": early} for config in deep for early in (1, 2)]
        work = product.M * product.N * product.K
        if target.matrix_unit != "wgmma" or product.M < _LEAST_ROWS or work > _SHORT:
            return found
        shapes: dict[Any, Config] = {}
        for config in found:
            names = ("BM", "BN", "BK", "warps", "stages")
            shapes.setdefault(tuple(config[name] for name in names), {**config, "early": 1})
        early = list(shapes.values())[:_EARLY]
        halves = [{**c, "group": c["group"] // 2} for c in early if c["group"] > 1]
        return [*found, *early, *halves]


class GemmSplitK(Dense, SplitK):
    name = "gemm.triton.split_k"

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        return few_rows_early(super().configs(problem, target), problem, target)


class GemmStreamK(Dense, StreamK):
    name = "gemm.triton.stream_k"


class GemmVector(DenseVector):
    name = "gemm.triton.gemv"

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        return few_rows_early(super().configs(problem, target), problem, target)
