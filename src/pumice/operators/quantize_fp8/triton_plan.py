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
    begins_early,
    cdiv,
    next_power_of_2,
)
from pumice.targets import Target

WIDEST = 32768  # of a row that one program holds in registers
PARTIALS = 4096  # at most, of the two-stage maximum
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


def with_early(configs: Sequence[Config], target: Target) -> list[Config]:
    """Candidates; before them those that begin early, where the GPU has that."""
    if not begins_early(target):
        return list(configs)
    return [*({**config, "early": 1} for config in configs), *configs]


def row_launch(
    kernel: Any, grid: tuple[int, int, int], arguments: Any, constants: Any, config: Config
) -> Launch:
    """A launch of a kernel over rows."""
    options = {"cuda": {"launch_pdl": True}} if config.get("early") else {}
    return Launch(kernel, grid, arguments, constants, num_warps=config["warps"], options=options)


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
            found = row_configs(rows, width, target, 128 if packed else 64)
        else:
            found = tile_configs(rows, width, target)
        return with_early(found, target)

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
        constants |= {"ROWS": config["rows"], "BLOCK": block, "EARLY": bool(config.get("early"))}
        grid = (cdiv(rows, config["rows"]) * blocks, 1, 1)
        return Plan((row_launch(map_tiles, grid, arguments, constants, config),))


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
        return with_early([{"block": b, "warps": w} for b, w in sizes if w <= most], target)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.quantize_fp8.kernel_triton import map_loop

        rows, width = problem["out"].shape
        if rows == 0 or width == 0:
            return Plan(())
        arguments, constants = row_arguments(problem)
        constants |= quantize_constants(problem, target)
        del constants["QUANTIZE"]
        constants |= {"ACTIVATION": self.activation(problem), "BLOCK": config["block"]}
        constants["EARLY"] = bool(config.get("early"))
        return Plan((row_launch(map_loop, (rows, 1, 1), arguments, constants, config),))


class QuantizeTensor:
    """One scale for all: given, or found in a first launch of `each` programs a compute unit.
    once: the second tells the cache that what passes through is not used again."""

    name = "quantize_fp8.triton.tensor"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if problem.attrs.get("quantize") != "tensor":
            return "quantize_fp8: this kernel makes one scale for the whole tensor"
        reason = row_reason("quantize_fp8", "x", problem["x"])
        return reason or dtype_reason(str(problem.attrs["out_dtype"]), target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        rows, width = problem["out"].shape
        found = tile_configs(rows, width, target)
        if not begins_early(target):
            return found
        more = {"early": 1, "once": 1, "each": 8}
        return [*({**config, **more} for config in found), *found]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.quantize_fp8.kernel_triton import absmax_scale, quantize_tensor

        rows, width = problem["out"].shape
        if rows == 0 or width == 0:
            return Plan(())
        blocks = cdiv(width, config["block"])
        tiles = cdiv(rows, config["rows"]) * blocks
        tile = {"ROWS": config["rows"], "BLOCK": config["block"]}
        sizes: dict[str, str | int | float] = {
            "x": "x", "T": rows, "width": width, "column_blocks": blocks,
            "x_stride": problem["x"].stride[0],
        }  # fmt: skip
        static = "scale" in problem
        scale = "scale" if static else "scales"
        largest = LARGEST[problem.attrs["out_dtype"]]
        second = row_launch(
            quantize_tensor, (tiles, 1, 1),
            {"out": "out", "scale": scale, "out_stride": problem["out"].stride[0], **sizes},
            {
                "STATIC": static, "LARGEST": largest,
                "BITWISE": bitwise(problem["out"].dtype, target), **tile,
                "EARLY": bool(config.get("early")), "ONCE": bool(config.get("once")),
            },
            config,
        )  # fmt: skip
        if static:
            return Plan((second,))
        programs = min(tiles, PARTIALS, config.get("each", 4) * target.compute_units)
        first = row_launch(
            absmax_scale, (programs, 1, 1),
            {"scale": scale, "partial": "partial", "arrived": "arrived", "tiles": tiles, **sizes},
            {
                "LARGEST": largest, "POWER_OF_TWO": bool(problem.attrs.get("power_of_two")),
                "PARTIALS": next_power_of_2(programs), "EARLY": bool(config.get("early")), **tile,
            },
            config,
        )  # fmt: skip
        workspaces = {
            "partial": TensorSpec((programs,), "float32"), "arrived": TensorSpec((1,), "int32"),
        }  # fmt: skip
        arrived = frozenset({"arrived"})
        return Plan((first, second), workspaces, arrived, arrived)


def _blocks_reason(problem: Problem) -> str | None:
    """Why scales are not one for each block."""
    x, scales = problem["x"], problem["scales"]
    each = [int(problem.attrs[name]) for name in ("row_group", "column_group")]
    needed = tuple(cdiv(n, group or max(n, 1)) for n, group in zip(x.shape, each, strict=True))
    if scales.shape != needed:
        return (
            f"dequantize_fp8: scales are {list(scales.shape)}; x is {list(x.shape)} in blocks of "
            f"{each[0] or 'all'} rows and {each[1] or 'all'} columns, which have {list(needed)}"
        )
    return None


class DequantizeTiles:
    """Codes times the scale of their block."""

    name = "dequantize_fp8.triton.tiles"

    def supports(self, problem: Problem, target: Target) -> str | None:
        reason = row_reason("dequantize_fp8", "x", problem["x"], tuple(LARGEST))
        return reason or _blocks_reason(problem) or dtype_reason(problem["x"].dtype, target)

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
