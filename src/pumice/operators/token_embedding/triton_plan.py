"""Plans of token_embedding."""

from __future__ import annotations

from collections.abc import Sequence

from pumice.operators.quantize_fp8.triton_plan import row_reason
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, cdiv, next_power_of_2
from pumice.targets import Target


class TokenEmbedding:
    """A piece of some rows a program."""

    name = "token_embedding.triton"

    def supports(self, problem: Problem, target: Target) -> str | None:
        tokens = problem["tokens"]
        if (
            len(tokens.shape) != 1
            or tokens.dtype not in ("int32", "int64")
            or not tokens.contiguous
        ):
            return "token_embedding: tokens must be contiguous int32[T] or int64[T]"
        return row_reason("token_embedding", "weight", problem["weight"])

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        block = min(max(next_power_of_2(problem["weight"].shape[1]), 32), 2048)
        found: list[Config] = []
        for size, warps in ((2048, 4), (4096, 8), (1024, 4)):
            b = min(block, size)
            found.append({"rows": max(1, min(16, size // b)), "block": b, "warps": warps})
        return found

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.token_embedding.kernel_triton import embedding_rows

        rows, width = problem["out"].shape
        if rows == 0 or width == 0:
            return Plan(())
        arguments: dict[str, str | int | float] = {
            "tokens": "tokens", "weight": "weight", "out": "out", "T": rows,
            "V": problem["weight"].shape[0], "width": width,
            "weight_stride": problem["weight"].stride[0], "out_stride": problem["out"].stride[0],
            "scale": float(problem.attrs.get("scale", 1.0)),
        }  # fmt: skip
        constants = {"ROWS": config["rows"], "BLOCK": config["block"]}
        grid = (cdiv(rows, config["rows"]), cdiv(width, config["block"]), 1)
        return Plan(
            (Launch(embedding_rows, grid, arguments, constants, num_warps=config["warps"]),)
        )
