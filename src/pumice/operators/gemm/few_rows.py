"""Plans of `few_rows_triton.py`: products of up to 64 rows on Hopper's matrix units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.gemm.product import Product, fault, of_problem
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

_MOST_ROWS = 64
_REGISTERS = 65536  # of a compute unit
_ADDRESSES = 72  # registers of a thread for what is no sum
_KEPT = 1024  # bytes of shared memory that a program takes besides
_SPLITS = (0, 1, 2, 3, 4)
_LEAST = 0.45  # programs a compute unit, so that memory has enough to do
_DESCRIPTORS = 2 * 128  # bytes: of x and w, which every program makes for itself
# (rows of w, columns, stages of w, of x, warps) by rows of x, the favourites first. Two programs
# have room on a compute unit: those of the launch behind come while these end.
_SHAPES: dict[int, tuple[tuple[int, int, int, int, int], ...]] = {
    8: ((64, 256, 3, 3, 4), (128, 128, 3, 3, 4), (64, 128, 3, 3, 4)),
    16: ((64, 256, 3, 2, 4), (128, 128, 3, 3, 4), (64, 128, 3, 3, 4)),
    32: ((64, 128, 4, 4, 4), (128, 64, 5, 5, 4)),
    64: ((64, 128, 3, 3, 4), (128, 64, 5, 4, 4)),
}


class GemmFewRows:
    """1 to 64 rows of x. config: rows of w and columns a step; stages of the rings of w and x;
    warps; split: programs a tile, 0 for one a compute unit, which share all steps evenly; early: it
    begins before the launch in front has ended (CUDA's programmatic launches) and lets the one
    behind begin at once (1) or with its last step (2)."""

    name = "gemm.triton.few_rows"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if target.matrix_unit != "wgmma":
            return f"{target.name} has no wgmma, which this kernel is made of (sm_90)"
        found = fault(problem, target, ("bfloat16", "float16"))
        if found is not None:
            return found
        product = of_problem(problem)
        if product.M > _MOST_ROWS:
            return f"x has {product.M} rows; at most {_MOST_ROWS} can be"
        if product.K == 0:
            return "K is 0"
        for name in ("x", "w"):
            if not problem[name].aligned or problem[name].stride[0] % 8 or product.K % 8:
                return f"rows of {name} must begin at multiples of 16 bytes, and K be one of 8"
        if cdiv(product.N, 64) * cdiv(product.K, 64) * 8 * target.compute_units >= 2**31:
            return f"{product.N} x {product.K} weights are more than this kernel counts"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        product = of_problem(problem)
        found: list[Config] = []
        for bn, bk, stages, x_stages, warps in _SHAPES[tokens_of(product)]:
            shape = {"rows": bn, "BK": bk, "stages": stages, "x_stages": x_stages, "warps": warps}
            room = resident(shape, tokens_of(product), target) * target.compute_units
            for split in _SPLITS:
                programs = cdiv(product.N, bn) * split or target.compute_units
                if split and not (
                    _LEAST * target.compute_units <= programs <= room
                    and product.K >= 2 * split * bk
                ):
                    continue
                # Where both launches' programs have no room together, those that come early do not
                # spread evenly: they come late then.
                early = 1 if 2 * programs <= room else 2
                found += [{**shape, "split": split, "early": e} for e in (early, 0)]
        return found

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        product = of_problem(problem)
        if product.empty:
            return Plan(())
        return few_rows_plan(product, target, config)


def tokens_of(product: Product) -> int:
    """Rows of x in a tile."""
    return max(8, next_power_of_2(product.M))


def resident(config: Config, tokens: int, target: Target) -> int:
    """Programs whose rings a compute unit has room for."""
    rows = config["stages"] * config["rows"] + config["x_stages"] * tokens
    return max(1, target.shared_bytes // (2 * config["BK"] * rows + _KEPT))


def few_rows_plan(product: Product, target: Target, config: Config) -> Plan:
    from pumice.operators.gemm.few_rows_triton import few_rows

    rows, tokens = config["rows"], tokens_of(product)
    tiles, steps = cdiv(product.N, rows), cdiv(product.K, config["BK"])
    programs = tiles * config["split"] if config["split"] else target.compute_units
    programs = min(programs, tiles * steps)
    names = set(few_rows.arg_names)
    given = product.arguments() | {
        "M": product.M, "tiles": tiles, "k_units": steps, "partial": "partial", "flags": "flags",
    }  # fmt: skip
    constants: dict[str, Any] = product.constants() | {
        "WHOLE": programs == tiles, "EARLY": config["early"], "T": tokens, "BN": rows,
        "BK": config["BK"], "STAGES": config["stages"], "X_STAGES": config["x_stages"],
        "WARPS": config["warps"],
    }  # fmt: skip
    options: dict[str, Any] = {"launch_pdl": True} if config["early"] else {}
    threads = config["warps"] * target.wave
    together = resident(config, tokens, target)
    registers = min(255, _REGISTERS // (together * threads) // 8 * 8)
    if registers < 255:
        options["maxnreg"] = registers
    sums = rows * tokens // threads
    constants["AT_ONCE"] = max(1, min(8, (registers - _ADDRESSES) // sums - 1))
    launch = Launch(
        few_rows, (programs, 1, 1),
        {name: value for name, value in given.items() if name in names},
        {name: value for name, value in constants.items() if name in names},
        num_warps=config["warps"], num_stages=1, options={"cuda": options}, scratch="descriptors",
    )  # fmt: skip
    workspaces = {
        "partial": TensorSpec((programs, rows, tokens), "float32"),
        "flags": TensorSpec((tiles,), "int32"),
        "descriptors": TensorSpec((programs, _DESCRIPTORS), "int8"),
    }
    flags = frozenset({"flags"})
    return Plan((launch,), workspaces, flags, flags)
