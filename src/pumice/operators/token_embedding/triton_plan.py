"""Plans of token_embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.quantize_fp8.triton_plan import row_reason
from pumice.operators.token_embedding.spec import FLOATS, bits_of, width_of
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, cdiv, next_power_of_2
from pumice.targets import Target


def _quantized_reason(problem: Problem) -> str | None:
    """Why a table of codes cannot be read, or None."""
    weight, group = problem["weight"], int(problem.attrs.get("group", 0))
    if len(weight.shape) != 2 or not weight.contiguous:
        return f"token_embedding: a table of codes must be contiguous [V, H], not {weight.shape}"
    rows, width = weight.shape[0], width_of(weight)
    packing = problem.attrs.get("packing", "rows")
    if packing not in ("rows", "blocks") or (packing == "blocks" and width % 128):
        return f"token_embedding: packing {packing!r} is none of 'rows', 'blocks' (128 divides H)"
    if "scales" not in problem:
        return f"token_embedding: a table of {weight.dtype} codes needs scales"
    if "zeros" in problem and "mins" in problem:
        return "token_embedding: zeros and mins exclude each other"
    if group < 1 or width % group:
        return f"token_embedding: group {group} must divide the width {width}"
    for name, dtypes in (
        ("scales", ("float16", "float32")), ("mins", ("float16", "float32")), ("zeros", ("uint8",)),
    ):  # fmt: skip
        if name in problem:
            given, shape = problem[name], (rows, width // group)
            if given.shape != shape or given.dtype not in dtypes or not given.contiguous:
                allowed = " or ".join(dtypes)
                return (
                    f"token_embedding: {name} is {given.dtype}{given.shape}; "
                    f"contiguous {allowed} {shape} is needed"
                )
    return None


class TokenEmbedding:
    """A piece of some rows a program."""

    name = "token_embedding.triton"

    def supports(self, problem: Problem, target: Target) -> str | None:
        tokens, weight = problem["tokens"], problem["weight"]
        if (
            len(tokens.shape) != 1
            or tokens.dtype not in ("int32", "int64")
            or not tokens.contiguous
        ):
            return "token_embedding: tokens must be contiguous int32[T] or int64[T]"
        out = str(problem.attrs.get("out_dtype", weight.dtype if not bits_of(weight) else ""))
        if out not in FLOATS:
            return f"token_embedding: out_dtype {out!r} is none of {', '.join(FLOATS)}"
        if bits_of(weight):
            return _quantized_reason(problem)
        return row_reason("token_embedding", "weight", weight)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        block = min(max(next_power_of_2(width_of(problem["weight"])), 32), 2048)
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
        weight, attrs = problem["weight"], problem.attrs
        optional = ("scales", "zeros", "mins")
        arguments: dict[str, str | int | float] = {n: n for n in optional if n in problem}
        arguments |= {
            "tokens": "tokens", "weight": "weight", "out": "out", "T": rows,
            "V": weight.shape[0], "width": width, "weight_stride": weight.stride[0],
            "scale_columns": problem["scales"].shape[1] if "scales" in problem else 0,
            "out_stride": problem["out"].stride[0], "scale": float(attrs.get("scale", 1.0)),
        }  # fmt: skip
        constants: dict[str, Any] = {n: None for n in optional if n not in problem}
        constants |= {
            "BITS": bits_of(weight), "BLOCKS": attrs.get("packing", "rows") == "blocks",
            "GROUP": int(attrs.get("group", 1)), "ZERO": int(attrs.get("zero", 0)),
            "ROWS": config["rows"], "BLOCK": config["block"],
        }  # fmt: skip
        grid = (cdiv(rows, config["rows"]), cdiv(width, config["block"]), 1)
        return Plan(
            (Launch(embedding_rows, grid, arguments, constants, num_warps=config["warps"]),)
        )
