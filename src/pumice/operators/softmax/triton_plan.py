"""Plans of softmax."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.operators.quantize_fp8.triton_plan import row_configs, row_reason
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, cdiv, next_power_of_2
from pumice.targets import Target

WIDEST = 16384  # of a row that is read once


class Softmax:
    """Rows in registers up to 16384 wide, else in blocks, a row a program."""

    name = "softmax.triton"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if problem["x"].shape[-1] == 0:
            return "softmax: rows of width 0 have no maximum"
        return row_reason("softmax", "x", problem["x"])

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
