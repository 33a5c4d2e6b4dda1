"""Plans of warp-specialized products on Hopper: one program a unit goes through its tiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.gemm.product import Product, fault, of_problem
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, TensorSpec, cdiv
from pumice.targets import Target

BM = 128
_LINE = 128  # bytes of a row of a block of K: what the hardware swizzles
_GROUPS = (8, 16)
_WARPS = 12  # four that load, of which one works, and two times four that multiply
_REGISTERS = 168  # of a lane, that is all that a unit has; groups of warps trade theirs
_DESCRIPTORS = 2 * 128  # bytes: of x and w, which every program makes for itself
_LEAST_ROWS = 129


class Specialized:
    """What an operator defines. dtypes: of x and w. tiles: columns, and as many stages as shared
    memory has room for. kernel: a function of Gluon with the parameters of `gemm_specialized`."""

    name = ""
    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    tiles: tuple[tuple[int, int], ...] = ()
    kernel: Any = None

    def check(self, problem: Problem) -> str | None:
        """Faults of an operator's own arguments, asked when x, w and out are sound."""
        return None

    def arguments(self, problem: Problem) -> dict[str, int]:
        """An operator's own run-time parameters."""
        return {}

    def supports(self, problem: Problem, target: Target) -> str | None:
        if target.matrix_unit != "wgmma":
            return f"{target.name} has no wgmma, which this kernel is made of (sm_90)"
        found = fault(problem, target, self.dtypes) or self.check(problem)
        if found is not None:
            return found
        product = of_problem(problem)
        if not product.aligned:
            return "rows of x and w must begin at multiples of 16 bytes"
        if product.K == 0:
            return "K is 0: there is nothing to multiply"
        if 0 < product.M < _LEAST_ROWS:
            return f"x has {product.M} rows; tiles of {BM} rows take {_LEAST_ROWS} or more"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        product = of_problem(problem)
        tiles = sorted(self.tiles, key=lambda tile: cost(product, target, tile[0]))
        return [
            {
                "BM": BM, "BN": bn, "BK": _LINE // product.itemsize, "warps": _WARPS,
                "stages": stages, "split": 1, "halves": 1, "registers": _REGISTERS, "group": group,
            }
            for group in _GROUPS
            for bn, stages in tiles
        ]  # fmt: skip

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        if product.empty:
            return Plan(())
        count, whole = wholes(product, target, config["BN"])
        programs = min(target.compute_units, whole + 2 * (count - whole))
        names = set(self.kernel.arg_names)
        given = product.arguments() | {"M": product.M, "whole": whole} | self.arguments(problem)
        constants = product.constants() | {
            "BM": BM, "BN": config["BN"], "BK": config["BK"], "STAGES": config["stages"],
            "GROUP_M": config["group"],
        }  # fmt: skip
        launch = Launch(
            self.kernel, (programs, 1, 1),
            {name: value for name, value in given.items() if name in names},
            {name: value for name, value in constants.items() if name in names},
            num_warps=4, num_stages=1, options={"cuda": {"maxnreg": config["registers"]}},
            scratch="descriptors",
        )  # fmt: skip
        return Plan((launch,), {"descriptors": TensorSpec((programs, _DESCRIPTORS), "int8")})


def wholes(product: Product, target: Target, bn: int) -> tuple[int, int]:
    """Tiles, and how many of them are done whole: those of a last, partial wave are halved where
    one wave then still has room for all."""
    count = cdiv(product.M, BM) * cdiv(product.N, bn)
    rest = count % target.compute_units
    return count, count - rest if bn == 256 and 2 * rest <= target.compute_units else count


def cost(product: Product, target: Target, bn: int) -> float:
    """Columns that the busiest unit does; of a narrow tile a column costs more, as it reads more
    for each."""
    count, whole = wholes(product, target, bn)
    units = target.compute_units
    halves = cdiv(2 * (count - whole), units)
    return cdiv(whole, units) * (bn + 24.0) + halves * (128 + 24.0)
