"""Plans of norm: rows in registers, or a loop over long rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.norm.spec import float_dtype
from pumice.operators.quantize_fp8.rows import GROUP, LARGEST, MODES, quantize_reason
from pumice.operators.quantize_fp8.triton_plan import (
    row_configs,
    row_launch,
    row_reason,
    with_early,
)
from pumice.operators.triton.float8 import bitwise
from pumice.operators.triton.plan import Config, Plan, Problem, cdiv, next_power_of_2
from pumice.targets import Target

FLOATS = ("float16", "bfloat16", "float32")
WIDEST = 16384  # that one program holds in registers


def norm_reason(problem: Problem, target: Target) -> str | None:
    """What no norm kernel does."""
    for name in ("x", "residual"):
        if name in problem and (reason := row_reason("norm", name, problem[name])):
            return reason
    if problem.attrs["kind"] not in ("rms", "layer"):
        return f"norm: kind {problem.attrs['kind']!r} is none of 'rms', 'layer'"
    for name in ("weight", "bias"):
        if name in problem and not problem[name].contiguous:
            return f"norm: {name} must be contiguous"
    if problem["x"].shape[1] == 0:
        return "norm: rows of width 0 have no mean"
    out = float_dtype(problem.attrs, problem["x"].dtype)
    if not problem.attrs.get("quantize") and out not in FLOATS:
        return f"norm: out_dtype {out!r} is none of {', '.join(FLOATS)}"
    return quantize_reason(problem.attrs, target)


def _arguments(
    problem: Problem, target: Target, config: Config
) -> tuple[dict[str, str | int | float], dict[str, Any]]:
    attrs = problem.attrs
    rows, width = problem["x"].shape
    names = ("x", "residual", "weight", "bias", "out", "scales")
    arguments: dict[str, str | int | float] = {name: name for name in names if name in problem}
    constants: dict[str, Any] = {name: None for name in names if name not in problem}
    arguments |= {"T": rows, "H": width, "eps": float(attrs["eps"])}
    arguments["weight_offset"] = float(attrs.get("weight_offset", 0.0))
    for name in ("x", "residual", "out", "scales"):
        arguments[f"{name}_stride"] = problem[name].stride[0] if name in problem else 0
    mode = attrs.get("quantize")
    constants |= {
        "LAYER": attrs["kind"] == "layer",
        "QUANTIZE": MODES[mode],
        "LARGEST": LARGEST[attrs["out_dtype"]] if mode else 0.0,
        "POWER_OF_TWO": bool(attrs.get("power_of_two")),
        "BITWISE": bitwise(problem["out"].dtype, target),
        "EARLY": bool(config.get("early")),
    }
    return arguments, constants


class NormRows:
    """Rows of up to 16384 elements, one or several a program, read once."""

    name = "norm.triton.rows"

    def supports(self, problem: Problem, target: Target) -> str | None:
        width = problem["x"].shape[-1]
        if width > WIDEST:
            return f"norm: rows of {width} elements do not fit in registers (at most {WIDEST})"
        return norm_reason(problem, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        rows, width = problem["x"].shape
        return with_early(row_configs(rows, width, target), target)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.norm.kernel_triton import norm_rows

        rows, width = problem["x"].shape
        if rows == 0:
            return Plan(())
        arguments, constants = _arguments(problem, target, config)
        block = max(next_power_of_2(width), GROUP)
        constants |= {"ROWS": config["rows"], "BLOCK": block}
        grid = (cdiv(rows, config["rows"]), 1, 1)
        return Plan((row_launch(norm_rows, grid, arguments, constants, config),))


class NormLoop:
    """Rows of any width, one a program, in blocks: the row is read again from the cache."""

    name = "norm.triton.loop"

    def supports(self, problem: Problem, target: Target) -> str | None:
        return norm_reason(problem, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        width = problem["x"].shape[1]
        most = 1024 // target.wave
        sizes = ((4096, 8), (8192, 16), (2048, 4), (4096, 16), (8192, 8))
        fitting = [(b, w) for b, w in sizes if b < 2 * width and w <= most]
        found = [{"block": b, "warps": w} for b, w in fitting or [(2048, 4)]]
        return with_early(found, target)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.norm.kernel_triton import norm_loop

        rows = problem["x"].shape[0]
        if rows == 0:
            return Plan(())
        arguments, constants = _arguments(problem, target, config)
        constants["BLOCK"] = config["block"]
        return Plan((row_launch(norm_loop, (rows, 1, 1), arguments, constants, config),))
