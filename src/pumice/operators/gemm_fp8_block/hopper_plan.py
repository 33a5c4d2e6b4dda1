"""Launches of products of 8-bit values by the warp-specialized kernel: one program a unit goes
through its tiles."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from pumice.dtypes import itemsize
from pumice.operators.gemm.product import Product, fault, of_problem
from pumice.operators.gemm_fp8_block.hopper_triton import specialized8
from pumice.operators.gemm_fp8_block.triton_plan import check_blocks, scale_strides
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, TensorSpec, cdiv
from pumice.targets import Target

BM = 128
BK = 128
_GROUP = 8
_WARPS = 12  # four that load, of which two work, and two times four that multiply
_REGISTERS = 168  # of a lane, that is all that a unit has; groups of warps trade theirs
_DESCRIPTOR = 128  # bytes; every program makes those of x and w, and each group its own of out
_LEAST_ROWS = 129
# What a block of K of a tile takes, in columns of the widest: narrow ones need more bytes for each.
_COSTS = {256: 256, 192: 210, 128: 165}
_ENDS = 300  # columns times blocks of K that the start and the end of a tile take the time of


class Specialized8(ABC):
    """What an operator defines. dtypes: of x and w. tiles: columns, stages that shared memory has
    room for beside the results, and by how much the second group is behind the first: halves of a
    block, 0 for as it comes."""

    name = ""
    dtypes: tuple[str, ...] = ()
    tiles: tuple[tuple[int, int, int], ...] = ((256, 4, 0), (192, 4, 0), (128, 6, 0))

    @abstractmethod
    def check(self, problem: Problem) -> str | None:
        """Faults of an operator's own arguments, asked when x, w and out are sound."""

    @abstractmethod
    def strides(self, problem: Problem) -> dict[str, int]:
        """Of scales: sm and sk of x_scale, tn and tk of w_scale."""

    @abstractmethod
    def sums(self, problem: Problem) -> dict[str, bool]:
        """BLOCKS: scales are of blocks. PROMOTE: every block's sums leave the matrix unit."""

    def supports(self, problem: Problem, target: Target) -> str | None:
        if target.matrix_unit != "wgmma":
            return f"{target.name} has no wgmma, which this kernel is made of (sm_90)"
        found = fault(problem, target, self.dtypes) or self.check(problem)
        if found is not None:
            return found
        product = of_problem(problem)
        if product.K == 0:
            return "K is 0: there is nothing to load"
        if not product.aligned:
            return "rows of x and w must begin at multiples of 16 bytes"
        if 0 < product.M < _LEAST_ROWS:
            return f"x has {product.M} rows; tiles of {BM} rows take {_LEAST_ROWS} or more"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        product = of_problem(problem)
        tiles = sorted(self.tiles, key=lambda tile: self._cut(product, target, tile[0])[1])
        return [
            {
                "BM": BM, "BN": bn, "BK": BK, "warps": _WARPS, "stages": stages, "skew": skew,
                "early": early, "split": 1, "halves": 1, "registers": _REGISTERS, "group": _GROUP,
            }
            for early in (0, 1)
            for bn, stages, skew in tiles
        ]  # fmt: skip

    def _cut(self, product: Product, target: Target, bn: int) -> tuple[int, float]:
        ends = cdiv(_ENDS, cdiv(product.K, BK))
        return cut(product.M, product.N, bn, ends, target.compute_units)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        if product.empty:
            return Plan(())
        strips = self._cut(product, target, config["BN"])[0]
        programs = min(
            target.compute_units, len(tile_costs(product.M, product.N, config["BN"], strips, 0))
        )
        given = product.arguments() | {"M": product.M, "strips": strips} | self.strides(problem)
        constants = product.constants() | self.sums(problem) | {
            "BM": BM, "BN": config["BN"], "BK": BK, "STAGES": config["stages"],
            "SKEW": config["skew"], "STAGED": staged(problem), "EARLY": bool(config["early"]),
            "GROUP_M": config["group"],
        }  # fmt: skip
        options: dict[str, Any] = {"maxnreg": config["registers"]}
        if config["early"]:
            options["launch_pdl"] = True
        names = set(specialized8.arg_names)
        launch = Launch(
            specialized8, (programs, 1, 1),
            {name: value for name, value in given.items() if name in names},
            {name: value for name, value in constants.items() if name in names},
            num_warps=4, num_stages=1, options={"cuda": options}, scratch="descriptors",
        )  # fmt: skip
        room = (6 if config["BN"] == 192 else 4) * _DESCRIPTOR
        return Plan((launch,), {"descriptors": TensorSpec((programs, room), "int8")})


class BlockSpecialized(Specialized8):
    """Sums leave the matrix unit, and are scaled, after every block of K."""

    name = "gemm_fp8_block.triton.specialized"
    dtypes = ("float8_e4m3fn",)
    tiles = ((256, 4, 1), (192, 4, 0), (128, 5, 0), (256, 4, 0), (256, 4, 3))

    def check(self, problem: Problem) -> str | None:
        return check_blocks(problem)

    def strides(self, problem: Problem) -> dict[str, int]:
        return scale_strides(problem)

    def sums(self, problem: Problem) -> dict[str, bool]:
        return {"BLOCKS": True, "PROMOTE": True}


def staged(problem: Problem) -> bool:
    """Whether the tensor memory accelerator can store out: two bytes a value, rows that begin at
    multiples of 16 bytes, and no residual, which the group that adds it reads as it stores."""
    out = problem["out"]
    row = out.stride[0] * itemsize(out.dtype)
    return "residual" not in problem and itemsize(out.dtype) == 2 and out.aligned and row % 16 == 0


def tile_costs(m: int, n: int, wide: int, strips: int, ends: int) -> list[int]:
    """What tiles cost, in the order in which programs take them: wide ones, then those of 128
    columns right of them. ends: what a tile costs beside its columns."""
    rows = cdiv(m, BM)
    across = max(0, cdiv(n - strips * wide, 128))
    return [_COSTS[wide] + ends] * (rows * strips) + [_COSTS[128] + ends] * (rows * across)


@functools.lru_cache(4096)
def cut(m: int, n: int, wide: int, ends: int, units: int) -> tuple[int, int]:
    """How many strips of `wide` columns to do in wide tiles, and what the busiest unit then does.
    It leaves the last round of tiles fullest; of 192 an even number, or all."""
    rows = max(1, cdiv(m, BM))
    every = cdiv(n, wide)
    tried = {every}
    if wide > 128:
        even = wide % BK != 0
        tried |= {
            max(0, min(every, strips - (strips % 2 if even else 0)))
            for k in range(cdiv(rows * every, units) + 1)
            for strips in (k * units // rows, k * units // rows + 1)
        }
    most, strips = min((_busiest(m, n, wide, strips, ends, units), -strips) for strips in tried)
    return -strips, most


def _busiest(m: int, n: int, wide: int, strips: int, ends: int, units: int) -> int:
    costs = tile_costs(m, n, wide, strips, ends)
    return max(sum(costs[unit::units]) for unit in range(units))
