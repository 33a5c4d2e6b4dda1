"""Launches of `gemm` by the warp-specialized kernels."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.operators.gemm.hopper_stream_triton import gemm_streamed
from pumice.operators.gemm.hopper_triton import gemm_specialized
from pumice.operators.gemm.product import Product, of_problem
from pumice.operators.gemm.specialized import BM, DESCRIPTORS, LINE, Specialized, options
from pumice.operators.gemm.stretches import units_of
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, TensorSpec, cdiv
from pumice.targets import Target

_GIVE = 40  # columns that handing sums of a tile over takes the time of


class GemmSpecialized(Specialized):
    """16-bit floats. config "early": begins before the launch in front of it has ended."""

    name = "gemm.triton.specialized"
    dtypes = ("bfloat16", "float16")
    tiles: tuple[tuple[int, int], ...] = ((256, 4), (192, 5), (128, 6))
    kernel = gemm_specialized
    step = 1

    def unchecked(self, product: Product) -> str:
        return ""

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        found = super().configs(problem, target)
        first = [config for config in found if config["group"] == found[0]["group"]]
        return [
            {**config, "early": early}
            for early, offered in ((0, found), (1, first))
            for config in offered
        ]


class GemmStreamed(GemmSpecialized):
    """Units that have one row of tiles share its blocks of K evenly."""

    name = "gemm.triton.streamed"
    tiles = ((256, 4), (128, 6))
    kernel = gemm_streamed

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        found = super().configs(problem, target)
        return [config for config in found if config["group"] == found[0]["group"]]

    def _units(self, product: Product, target: Target, bn: int) -> int:
        """Of one row of tiles."""
        most = target.compute_units // max(1, cdiv(product.M, BM))
        blocks = cdiv(product.K, LINE // product.itemsize)
        return units_of(cdiv(product.N, bn), blocks, most)

    def supports(self, problem: Problem, target: Target) -> str | None:
        found = super().supports(problem, target)
        if found is None and not (product := of_problem(problem)).empty:
            if target.compute_units < 2 * cdiv(product.M, BM):
                return f"x has {product.M} rows; of {target.compute_units} units no two share a row"
        return found

    def _cut(self, product: Product, target: Target, bn: int) -> tuple[int, float]:
        strips = cdiv(product.N, bn)
        units = self._units(product, target, bn)
        return strips, bn * strips / units + (_GIVE * bn / 256 if strips % units else 0)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        if product.empty:
            return Plan(())
        programs = cdiv(product.M, BM) * self._units(product, target, config["BN"])
        names = set(self.kernel.arg_names)
        given = product.arguments() | {"M": product.M, "partial": "partial", "flags": "flags"}
        constants = product.constants() | {
            "BM": BM, "BN": config["BN"], "BK": config["BK"], "STAGES": config["stages"],
            "EARLY": bool(config["early"]),
        }  # fmt: skip
        launch = Launch(
            self.kernel, (programs, 1, 1),
            {name: value for name, value in given.items() if name in names},
            {name: value for name, value in constants.items() if name in names},
            num_warps=4, num_stages=1, options=options(config), scratch="descriptors",
        )  # fmt: skip
        workspaces = {
            "descriptors": TensorSpec((programs, DESCRIPTORS), "int8"),
            "partial": TensorSpec((programs, BM, config["BN"]), "float32"),
            "flags": TensorSpec((programs, 2), "int32"),
        }
        flags = frozenset({"flags"})
        return Plan((launch,), workspaces, flags, flags)
