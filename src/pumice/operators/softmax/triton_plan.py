"""Plans of softmax."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.operators.quantize_fp8.triton_plan import row_configs, row_reason, with_early
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

WIDEST = 16384  # of a row that is read once
_SHORTEST = 1024  # of a row that is cut into shares


def _fault(problem: Problem) -> str | None:
    if problem["x"].shape[-1] == 0:
        return "softmax: rows of width 0 have no maximum"
    return row_reason("softmax", "x", problem["x"])


class Softmax:
    """Rows in registers up to 16384 wide, else in blocks, a row a program."""

    name = "softmax.triton"

    def supports(self, problem: Problem, target: Target) -> str | None:
        return _fault(problem)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        rows, width = problem["x"].shape
        most = 1024 // target.wave
        blocks = ((4096, 8), (8192, 16), (2048, 4), (4096, 16), (8192, 8))
        loops: list[Config] = [
            {"rows": 1, "block": b, "warps": w} for b, w in blocks if b < 2 * width and w <= most
        ]
        if width > WIDEST:
            return loops
        block = max(next_power_of_2(width), 128)
        return [dict(c) | {"block": block} for c in row_configs(rows, width, target)] + loops[:2]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.softmax.kernel_triton import softmax_rows

        rows, width = problem["x"].shape
        if rows == 0:
            return Plan(())
        arguments: dict[str, str | int | float] = {
            "x": "x", "out": "out", "T": rows, "width": width,
            "x_stride": problem["x"].stride[0], "out_stride": problem["out"].stride[0],
            "scale": float(problem.attrs.get("scale", 1.0)),
        }  # fmt: skip
        constants = {
            "LOG": bool(problem.attrs.get("log")), "WHOLE": config["block"] >= width,
            "ROWS": config["rows"], "BLOCK": config["block"],
        }  # fmt: skip
        grid = (cdiv(rows, config["rows"]), 1, 1)
        return Plan((Launch(softmax_rows, grid, arguments, constants, num_warps=config["warps"]),))


class SoftmaxShares:
    """Two launches, several programs a row, for fewer rows than a device has places. config: share,
    columns of a program, in blocks of `block`."""

    name = "softmax.triton.shares"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if (found := _fault(problem)) is not None:
            return found
        rows, width = problem["x"].shape
        if width < _SHORTEST:
            return f"softmax: rows of {width} columns; {_SHORTEST} are worth more than one program"
        if rows > 4 * target.compute_units:
            return f"softmax: {rows} rows fill {target.compute_units} compute units one by one"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        rows, width = problem["x"].shape
        aim = cdiv(width * max(rows, 1), 4 * target.compute_units)  # four programs a unit
        found: list[Config] = []
        for block, wide, times in ((2048, 8, 1), (1024, 4, 1), (2048, 8, 2), (1024, 4, 2),
                                   (4096, 8, 1), (4096, 16, 1)):  # fmt: skip
            share = max(1, cdiv(aim * times, block)) * block
            warps = max(1, wide * 32 // target.wave)
            config = {"block": block, "warps": warps, "share": share}
            if block < 2 * width and warps * target.wave <= 1024 and config not in found:
                found.append(config)
        return with_early(found, target)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.softmax.shares_triton import softmax_combined, softmax_shares

        rows, width = problem["x"].shape
        if rows == 0:
            return Plan(())
        parts = cdiv(width, config["share"])
        places = next_power_of_2(parts)
        arguments: dict[str, str | int | float] = {
            "x": "x", "found": "found", "width": width, "x_stride": problem["x"].stride[0],
            "scale": float(problem.attrs.get("scale", 1.0)), "chunk": config["share"],
        }  # fmt: skip
        constants = {
            "PARTS": places, "BLOCK": config["block"], "EARLY": bool(config.get("early")),
        }  # fmt: skip
        options = {"cuda": {"launch_pdl": True}} if config.get("early") else {}
        combined: dict[str, str | int | float] = {
            "out": "out", "out_stride": problem["out"].stride[0], "parts": parts,
        }  # fmt: skip
        log = {"LOG": bool(problem.attrs.get("log"))}
        grid = (rows, parts, 1)
        return Plan(
            (
                Launch(softmax_shares, grid, arguments, constants, num_warps=config["warps"],
                       options=options),
                Launch(softmax_combined, grid, arguments | combined, constants | log,
                       num_warps=config["warps"], options=options),
            ),
            {"found": TensorSpec((rows, 2, places), "float32")},
        )  # fmt: skip
