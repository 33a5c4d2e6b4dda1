"""The ways to cut a matrix product into programs, for every operator of the family.

An operator gives tile shapes and the launches of one cut; the classes here say when a way applies
and what is worth trying.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from pumice.operators.gemm import tiles
from pumice.operators.gemm.product import FLOATS, Product, fault, of_problem
from pumice.operators.gemm.tiles import Tile
from pumice.operators.triton.float8 import bitwise
from pumice.operators.triton.plan import Config, Plan, Problem, cdiv
from pumice.targets import Target

_GEMV_ROWS = 8
_GRID_Y = 65535


class Family:
    """What an operator defines. dtypes: of x and w. rank: 3 with a batch axis."""

    name = ""
    dtypes: tuple[str, ...] = FLOATS
    rank = 2

    def check(self, problem: Problem) -> str | None:
        """Faults of an operator's own arguments, asked when x, w and out are sound."""
        return None

    def fault(self, problem: Problem, target: Target) -> str | None:
        found = fault(problem, target, self.dtypes, self.rank) or self.check(problem)
        if found is None and self.rank == 3 and problem["x"].shape[0] > _GRID_Y:
            return f"{problem['x'].shape[0]} batches are more than a grid has ({_GRID_Y})"
        return found


class Cut(Family, ABC):
    """A family whose programs compute tiles."""

    @abstractmethod
    def candidates(self, product: Product, target: Target) -> list[Tile]:
        """Tile shapes, whole tiles."""

    @abstractmethod
    def launches(
        self, product: Product, target: Target, config: Config, whole: int | None = None
    ) -> Plan:
        """A plan in which the first `whole` tiles (None: all) are done whole, others split."""


class Tiled(Cut):
    """Whole tiles of the output, one a program."""

    def supports(self, problem: Problem, target: Target) -> str | None:
        return self.fault(problem, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        product = of_problem(problem)
        return tiles.ordered(product, target, self.candidates(product, target))

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        return self.launches(of_problem(problem), target, config)


class SplitK(Cut):
    """Every tile in slices of K, added in a second launch in fixed order: bit-equal runs.

    For outputs with fewer tiles than the device has compute units.
    """

    def supports(self, problem: Problem, target: Target) -> str | None:
        found = self.fault(problem, target)
        if found is None and not of_problem(problem).empty and not self._tiles(problem, target):
            return "K is too short, or tiles are too many, to split"
        return found

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        product = of_problem(problem)
        found = self._tiles(problem, target) or self.candidates(product, target)
        return tiles.ordered(product, target, found)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        return self.launches(of_problem(problem), target, config, whole=0)

    def _tiles(self, problem: Problem, target: Target) -> list[Tile]:
        product = of_problem(problem)
        return tiles.with_splits(product, target, self.candidates(product, target))


class StreamK(Cut):
    """Whole tiles while they fill the device; the last, partial wave is split along K.

    The data-parallel hybrid of Stream-K (Osama et al., arXiv:2301.03598), with slices of equal
    length and a second launch that adds them in fixed order.
    """

    def supports(self, problem: Problem, target: Target) -> str | None:
        found = self.fault(problem, target)
        if found is None and not of_problem(problem).empty and not self._tiles(problem, target):
            return "there is no partial last wave after a full one"
        return found

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        product = of_problem(problem)
        found = self._tiles(problem, target) or self.candidates(product, target)
        return [
            {**config, "slots": self._slots(config, product, target)}
            for config in tiles.ordered(product, target, found, most=6)
        ]

    @staticmethod
    def _slots(config: Config, product: Product, target: Target) -> int:
        """Programs that run at once."""
        names = ("BM", "BN", "BK", "warps", "stages", "split", "halves")
        tile = Tile(**{name: config[name] for name in names}, registers=config["registers"])
        return target.compute_units * tiles.resident(tile, target, product.itemsize)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        count = cdiv(product.M, config["BM"]) * cdiv(product.N, config["BN"])
        slots = config.get("slots") or target.compute_units
        return self.launches(product, target, config, whole=count // slots * slots)

    def _tiles(self, problem: Problem, target: Target) -> list[Tile]:
        product = of_problem(problem)
        found = []
        for tile in self.candidates(product, target):
            slots = target.compute_units * tiles.resident(tile, target, product.itemsize)
            count = cdiv(product.M, tile.BM) * cdiv(product.N, tile.BN)
            whole, tail = count // slots * slots, count % slots
            if not whole or not tail or product.B > 1 or tile.BN & (tile.BN - 1):
                continue
            split = min(16, slots // max(tail, 1), product.K // (2 * tile.BK))
            if split > 1:
                found.append(replace(tile, split=split))
        return found


class Vector(Family):
    """Few rows of x: lanes multiply, at the speed of reading w."""

    def supports(self, problem: Problem, target: Target) -> str | None:
        found = self.fault(problem, target)
        if found is None and problem["x"].shape[-2] > _GEMV_ROWS:
            return f"x has {problem['x'].shape[-2]} rows; at most {_GEMV_ROWS} can be"
        return found

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        product = of_problem(problem)
        vector = 16 // product.itemsize
        # Decoding holds codes beside values.
        most = 64 if bitwise(problem["x"].dtype, target) else 128
        found: list[Config] = []
        for bn, warps in ((4, 4), (8, 4), (2, 4), (1, 8), (2, 8), (4, 2), (8, 2), (16, 2), (1, 4),
                          (4, 1), (8, 1), (2, 1)):  # fmt: skip
            block = vector * target.wave * warps
            wide = block >= 2 * max(product.K, 1) and warps > 1
            if bn > 1 and bn * product.M * vector > 256:
                continue  # each is a multiplication in the unrolled loop
            if bn * vector > most:
                continue  # each is a register of a lane
            if wide or warps * target.wave > 512:
                continue
            found.append({"BN": bn, "BK": block, "warps": warps, "vector": vector})
        return sorted(found, key=lambda config: _vector_cost(product, target, config))


def _vector_cost(product: Product, target: Target, config: Config) -> float:
    """Padding of K and of the last wave, and too few bytes in flight; 1 is ideal. A unit keeps
    about 1024 lanes that wait for loads."""
    programs = max(1, cdiv(product.N, config["BN"]) * product.B)
    held = max(1, 1024 // (config["warps"] * target.wave))
    slots = held * target.compute_units
    padded = cdiv(product.K, config["BK"]) * config["BK"] / max(product.K, 1)
    flying = min(programs, slots) * config["BN"] * config["BK"] * product.itemsize
    reach = min(1.0, flying / ((target.bandwidth or 1e12) * 1e-6))
    waves = programs / slots
    tail = cdiv(programs, slots) / waves if 1 < waves <= 4 else 1.0
    return float(padded * tail / reach * (1 + 0.1 / config["BN"]))
