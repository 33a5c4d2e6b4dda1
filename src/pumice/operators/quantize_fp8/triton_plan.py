"""Plans of quantize_fp8 and dequantize_fp8; activation_mul shares those of whole tiles and rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.dtypes import itemsize
from pumice.operators.quantize_fp8.rows import (
    GROUP,
    LARGEST,
    MODES,
    dtype_reason,
    quantize_reason,
)
from pumice.operators.triton.float8 import bitwise
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

WIDEST = 32768  # of a row that one program holds in registers
PARTIALS = 1024  # at most, of the two-stage maximum
_FLOATS = ("float16", "bfloat16", "float32")


def row_reason(
    operator: str, name: str, spec: TensorSpec, dtypes: Sequence[str] = _FLOATS
) -> str | None:
    """Why rows of a tensor cannot be read, or None: two axes, the last one contiguous."""
    if len(spec.shape) != 2:
        return f"{operator}: {name} has shape {spec.shape}; two axes are allowed"
    if spec.dtype not in dtypes:
        return f"{operator}: {name} is {spec.dtype}; allowed: {', '.join(dtypes)}"
    if spec.shape[1] > 1 and spec.stride[1] != 1:
        return f"{operator}: {name} has strides {spec.stride}; the last must be 1"
    return None


def row_warps(block: int, rows: int, few: bool, target: Target) -> int:
    """Warps of a program over rows × block elements: 16 elements a thread when there are rows
    enough, 8 when few rows leave the device idle."""
    each = 8 if few else 16
    warps = next_power_of_2(cdiv(rows * block, each * target.wave))
    return max(1, min(warps, 1024 // target.wave, 16))


def row_configs(rows: int, width: int, target: Target, held: int = 64) -> list[Config]:
    """Candidates (rows a program, warps) of kernels that hold whole rows, at most `held` elements
    a thread."""
    block = max(next_power_of_2(width), GROUP)
    few = rows < 2 * target.compute_units
    each = 1 if few else max(1, min(8, 4096 // block))
    favourite = row_warps(block, each, few, target)
    found: list[Config] = [{"rows": each, "warps": favourite}]
    most = min(32 if block >= WIDEST // 2 else 16, 1024 // target.wave)
    for r in dict.fromkeys((each, max(1, each // 4), min(2 * each, 16))):
        for w in (favourite, favourite * 2, favourite // 2, 4):
            config = {"rows": r, "warps": w}
            # beyond, registers spill
            if 1 <= w <= most and r * block <= held * w * target.wave and config not in found:
                found.append(config)
    return found


def tile_configs(rows: int, width: int, target: Target) -> list[Config]:
    """Candidates (rows, block, warps) of kernels that cut rows into tiles, 16 bytes a load."""
    block = min(max(next_power_of_2(width), GROUP), 2048)
    warps = 256 // target.wave
    found: list[Config] = []
    for size, w in ((2048, warps // 2), (2048, warps), (4096, warps), (1024, warps // 2)):
        b = min(block, size)
        config = {"rows": max(1, size // b), "block": b, "warps": w}
        if config not in found:
            found.append(config)
    return found


def quantize_constants(problem: Problem, target: Target) -> dict[str, Any]:
    mode = problem.attrs.get("quantize")
    return {
        "QUANTIZE": MODES[mode],
        "LARGEST": LARGEST[problem.attrs["out_dtype"]] if mode else 0.0,
        "POWER_OF_TWO": bool(problem.attrs.get("power_of_two")),
        "BITWISE": bitwise(problem["out"].dtype, target),
    }


def row_arguments(problem: Problem) -> tuple[dict[str, str | int | float], dict[str, Any]]:
    """Pointers, sizes and strides of x, out and scales; absent ones are None."""
    rows, width = problem["out"].shape
    arguments: dict[str, str | int | float] = {"x": "x", "out": "out", "T": rows, "width": width}
    constants: dict[str, Any] = {}
    for name in ("x", "out", "scales"):
        arguments[f"{name}_stride"] = problem[name].stride[0] if name in problem else 0
    if "scales" in problem:
        arguments["scales"] = "scales"
    else:
        constants["scales"] = None
    return arguments, constants


class MapTiles:
    """Tiles of rows; whole rows where a scale belongs to a row."""

    name = "quantize_fp8.triton.tiles"
    operator = "quantize_fp8"

    def activation(self, problem: Problem) -> int:
        return 0

    def reason(self, problem: Problem, target: Target) -> str | None:
        if problem.attrs.get("quantize") not in ("token", "group"):
            return "quantize_fp8: this kernel makes a scale a token or a group"
        return None

    def supports(self, problem: Problem, target: Target) -> str | None:
        reason = self.reason(problem, target) or row_reason(self.operator, "x", problem["x"])
        reason = reason or quantize_reason(problem.attrs, target)
        if reason:
            return reason
        width = problem["out"].shape[1]
        if problem.attrs.get("quantize") == "token" and width > WIDEST:
            return f"{self.operator}: rows of {width} elements do not fit in registers ({WIDEST})"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        rows, width = problem["out"].shape
        if problem.attrs.get("quantize") == "token":
            # Plain rows are held as they are loaded, two elements of 16 bits a register.
            packed = self.activation(problem) == 0 and itemsize(problem["x"].dtype) == 2
            return row_configs(rows, width, target, 128 if packed else 64)
        return tile_configs(rows, width, target)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.quantize_fp8.kernel_triton import map_tiles

        rows, width = problem["out"].shape
        if rows == 0 or width == 0:
            return Plan(())
        arguments, constants = row_arguments(problem)
        block = config.get("block", max(next_power_of_2(width), GROUP))
        blocks = cdiv(width, block)
        arguments["column_blocks"] = blocks
        constants |= quantize_constants(problem, target)
        constants |= {"ACTIVATION": self.activation(problem)}
        constants |= {"ROWS": config["rows"], "BLOCK": block}
        grid = (cdiv(rows, config["rows"]) * blocks, 1, 1)
        return Plan((Launch(map_tiles, grid, arguments, constants, num_warps=config["warps"]),))


class MapLoop:
    """One scale a row of any width, in two passes over it."""

    name = "quantize_fp8.triton.loop"
    operator = "quantize_fp8"

    def activation(self, problem: Problem) -> int:
        return 0

    def reason(self, problem: Problem, target: Target) -> str | None:
        return None

    def supports(self, problem: Problem, target: Target) -> str | None:
        if problem.attrs.get("quantize") != "token":
            return f"{self.operator}: this kernel makes a scale a token"
        reason = self.reason(problem, target) or row_reason(self.operator, "x", problem["x"])
        return reason or quantize_reason(problem.attrs, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        most = 1024 // target.wave
        sizes = ((4096, 8), (8192, 16), (2048, 4), (4096, 16))
        return [{"block": b, "warps": w} for b, w in sizes if w <= most]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.quantize_fp8.kernel_triton import map_loop

        rows, width = problem["out"].shape
        if rows == 0 or width == 0:
            return Plan(())
        arguments, constants = row_arguments(problem)
        constants |= quantize_constants(problem, target)
        del constants["QUANTIZE"]
        constants |= {"ACTIVATION": self.activation(problem), "BLOCK": config["block"]}
        return Plan(
            (Launch(map_loop, (rows, 1, 1), arguments, constants, num_warps=config["warps"]),)
        )


class QuantizeTensor:
    """One scale for all: given, or found in a first launch."""

    name = "quantize_fp8.triton.tensor"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if problem.attrs.get("quantize") != "tensor":
            return "quantize_fp8: this kernel makes one scale for the whole tensor"
        reason = row_reason("quantize_fp8", "x", problem["x"])
        return reason or dtype_reason(str(problem.attrs["out_dtype"]), target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        rows, width = problem["out"].shape
        return tile_configs(rows, width, target)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.quantize_fp8.kernel_triton import absmax_partial, quantize_tensor

        rows, width = problem["out"].shape
        if rows == 0 or width == 0:
            return Plan(())
        blocks = cdiv(width, config["block"])
        tiles = cdiv(rows, config["rows"]) * blocks
        tile = {"ROWS": config["rows"], "BLOCK": config["block"]}
        partials = min(tiles, PARTIALS, 4 * target.compute_units)
        sizes = {"T": rows, "width": width, "column_blocks": blocks}
        sizes["x_stride"] = problem["x"].stride[0]
        static = "scale" in problem
        constants: dict[str, Any] = {
            "STATIC": static, "LARGEST": LARGEST[problem.attrs["out_dtype"]],
            "POWER_OF_TWO": bool(problem.attrs.get("power_of_two")),
            "BITWISE": bitwise(problem["out"].dtype, target),
            "PARTIALS": next_power_of_2(partials), **tile,
        }  # fmt: skip
        arguments: dict[str, str | int | float] = {
            "x": "x", "out": "out", "scale": "scale" if static else "scales", **sizes,
            "partials": partials, "out_stride": problem["out"].stride[0],
        }  # fmt: skip
        if static:
            constants["partial"] = None
        else:
            arguments["partial"] = "partial"
        second = Launch(
            quantize_tensor, (tiles, 1, 1), arguments, constants, num_warps=config["warps"]
        )
        if static:
            return Plan((second,))
        first = Launch(
            absmax_partial,
            (partials, 1, 1),
            {"x": "x", "partial": "partial", "tiles": tiles, **sizes},
            tile,
            num_warps=config["warps"],
        )
        return Plan((first, second), {"partial": TensorSpec((partials,), "float32")})


class DequantizeTiles:
    """Codes times the scale of their block."""

    name = "dequantize_fp8.triton.tiles"

    def supports(self, problem: Problem, target: Target) -> str | None:
        reason = row_reason("dequantize_fp8", "x", problem["x"], tuple(LARGEST))
        return reason or dtype_reason(problem["x"].dtype, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        rows, width = problem["x"].shape
        return tile_configs(rows, width, target)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.quantize_fp8.kernel_triton import dequantize_tiles

        rows, width = problem["x"].shape
        if rows == 0 or width == 0:
            return Plan(())
        blocks = cdiv(width, config["block"])
        arguments: dict[str, str | int | float] = {
            "x": "x", "scales": "scales", "out": "out", "T": rows, "width": width,
            "column_blocks": blocks,
            "row_group": int(problem.attrs["row_group"]) or rows,
            "column_group": int(problem.attrs["column_group"]) or width,
        }  # fmt: skip
        for name in ("x", "scales", "out"):
            arguments[f"{name}_stride"] = problem[name].stride[0]
        constants = {
            "BITWISE": bitwise(problem["x"].dtype, target),
            "ROWS": config["rows"], "BLOCK": config["block"],
        }  # fmt: skip
        grid = (cdiv(rows, config["rows"]) * blocks, 1, 1)
        return Plan(
            (Launch(dequantize_tiles, grid, arguments, constants, num_warps=config["warps"]),)
        )
