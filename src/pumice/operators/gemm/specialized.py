"""Plans of warp-specialized products on Hopper: one program a unit goes through its tiles."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from pumice.operators.gemm.product import Product, fault, of_problem
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, TensorSpec, cdiv
from pumice.targets import Target

BM = 128
LINE = 128  # bytes of a row of a block of K: what the hardware swizzles
_GROUPS = (8, 16)
WARPS = 12  # four that load, of which one works, and two times four that multiply
_REGISTERS = 168  # of a lane, that is all that a unit has; groups of warps trade theirs
DESCRIPTORS = 2 * 128  # bytes: of x and w, which every program makes for itself
_LEAST_ROWS = 129
_MORE = 24  # columns that the start and the end of a tile take the time of


class Specialized:
    """What an operator defines. dtypes: of x and w. tiles: columns, and as many stages as shared
    memory has room for. kernel: a function of Gluon with the parameters of `gemm_specialized`.
    blocks: of columns that share a scale, 0 for none. step: of K."""

    name = ""
    dtypes: tuple[str, ...] = ()
    tiles: tuple[tuple[int, int], ...] = ()
    kernel: Any = None
    blocks: int = 0
    step: int = 64

    def check(self, problem: Problem) -> str | None:
        """Faults of an operator's own arguments, asked when x, w and out are sound."""
        return None

    def arguments(self, problem: Problem) -> dict[str, int]:
        """An operator's own run-time parameters."""
        return {}

    def unchecked(self, product: Product) -> str:
        """What a product asks for that the kernels have code for, whose numbers nobody has seen."""
        asked = [name for name in ("bias", "residual") if name in product.problem]
        if product.activation != "none":
            asked.append(f"activation {product.activation}")
        if product.out_dtype != "bfloat16":
            asked.append(f"out in {product.out_dtype}")
        if product.M % BM:
            asked.append(f"a tile of fewer than {BM} rows ({product.M} in all)")
        return ", ".join(asked)

    def _cut(self, product: Product, target: Target, bn: int) -> tuple[int, float]:
        even = self.blocks and bn % self.blocks != 0
        return cut(product.M, product.N, bn, even, target.compute_units)

    def supports(self, problem: Problem, target: Target) -> str | None:
        if target.matrix_unit != "wgmma":
            return f"{target.name} has no wgmma, which this kernel is made of (sm_90)"
        found = fault(problem, target, self.dtypes) or self.check(problem)
        if found is not None:
            return found
        product = of_problem(problem)
        if not product.aligned:
            return "rows of x and w must begin at multiples of 16 bytes"
        if product.K == 0 or product.K % self.step:
            return f"K is {product.K}; a multiple of {self.step} is needed"
        if 0 < product.M < _LEAST_ROWS:
            return f"x has {product.M} rows; tiles of {BM} rows take {_LEAST_ROWS} or more"
        if unchecked := self.unchecked(product):
            return f"no device has checked this kernel with {unchecked} yet"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        product = of_problem(problem)
        tiles = sorted(self.tiles, key=lambda tile: self._cut(product, target, tile[0])[1])
        return [
            {
                "BM": BM, "BN": bn, "BK": LINE // product.itemsize, "warps": WARPS,
                "stages": stages, "split": 1, "halves": 1, "registers": _REGISTERS, "group": group,
            }
            for group in _GROUPS
            for bn, stages in tiles
        ]  # fmt: skip

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        if product.empty:
            return Plan(())
        strips = self._cut(product, target, config["BN"])[0]
        rest = max(0, cdiv(product.N - strips * config["BN"], 128))
        programs = min(target.compute_units, cdiv(product.M, BM) * (strips + rest))
        names = set(self.kernel.arg_names)
        given = product.arguments() | {"M": product.M, "strips": strips} | self.arguments(problem)
        constants = product.constants() | {
            "BM": BM, "BN": config["BN"], "BK": config["BK"], "STAGES": config["stages"],
            "GROUP_M": config["group"], "EARLY": bool(config.get("early")),
        }  # fmt: skip
        launch = Launch(
            self.kernel, (programs, 1, 1),
            {name: value for name, value in given.items() if name in names},
            {name: value for name, value in constants.items() if name in names},
            num_warps=4, num_stages=1, options=options(config),
            scratch="descriptors",
        )  # fmt: skip
        return Plan((launch,), {"descriptors": TensorSpec((programs, DESCRIPTORS), "int8")})


def options(config: Config) -> dict[str, Any]:
    """Of CUDA's compiler and launches."""
    early = {"launch_pdl": True} if config.get("early") else {}
    return {"cuda": {"maxnreg": config["registers"], **early}}


@functools.lru_cache(4096)
def cut(m: int, n: int, wide: int, even: bool, units: int) -> tuple[int, float]:
    """How many strips of `wide` columns to do in wide tiles, the rest being done in tiles of 128,
    and what the busiest unit then does, in columns.

    even: no odd number of strips, but for all. The cut leaves the last round of tiles fullest.
    """
    rows = max(1, cdiv(m, BM))
    every = cdiv(n, wide)
    if wide <= 128:
        return every, cdiv(rows * every, units) * (wide + _MORE)
    rounds = cdiv(rows * every, units)
    tried = {every} | {
        max(0, min(every, strips - (strips % 2 if even else 0)))
        for k in range(rounds + 1)
        for strips in (k * units // rows, k * units // rows + 1)
    }
    found = [(_busiest(rows, strips, n, wide, units), -strips) for strips in tried]
    columns, strips = min(found)
    return -strips, columns


def _busiest(rows: int, strips: int, n: int, wide: int, units: int) -> float:
    """Columns of the unit with most, tiles being dealt in turns, wide ones first."""
    first, second = rows * strips, rows * max(0, cdiv(n - strips * wide, 128))
    most = 0.0
    # Units alike follow each other: the ends of both rounds are where it changes.
    for unit in {0, first % units, (first + second) % units, units - 1}:
        mine = cdiv(max(0, first - unit), units)
        turn = (unit - first) % units
        most = max(most, mine * (wide + _MORE) + cdiv(max(0, second - turn), units) * (128 + _MORE))
    return most
