"""Plans of gemm_w8."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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

MOST_TOKENS = 8  # of the kernel on vector units
_FLOATS = ("float16", "bfloat16")
_CODES, _SCALES = ("int8", "uint8"), ("float16", "float32")
_OUT = (*_FLOATS, "float32")


def gemm_reason(problem: Problem) -> str | None:
    """What no kernel of gemm_w8 does."""
    x, w = problem["x"], problem["w"]
    if len(x.shape) != 2 or x.dtype not in _FLOATS:
        return f"gemm_w8: x is {x.dtype}{x.shape}; float16 or bfloat16 [M, K] is allowed"
    if (out := str(problem.attrs.get("out_dtype", x.dtype))) not in _OUT:
        return f"gemm_w8: out_dtype {out!r} is none of {_OUT}"
    if x.shape[1] > 1 and x.stride[1] != 1:
        return f"gemm_w8: x has strides {x.stride}; the last must be 1"
    if w.dtype not in _CODES or w.shape[1:] != x.shape[1:] or not w.contiguous:
        allowed = f"contiguous int8[N, {x.shape[1]}] or uint8 is allowed"
        return f"gemm_w8: w is {w.dtype}{w.shape}; {allowed}"
    (n, k), group = w.shape, int(problem.attrs["group"])
    if k == 0 or n == 0:
        return "gemm_w8: there are no weights"
    if group != k and (group < 16 or group & (group - 1) or k % group):
        return f"gemm_w8: group {group} must be K = {k}, or 16, 32, 64 … and divide it"
    for name in ("scales", "mins"):
        if name in problem:
            given, shape = problem[name], (n, k // group)
            if given.shape != shape or given.dtype not in _SCALES or not given.contiguous:
                return f"gemm_w8: {name} must be contiguous float16{shape} or float32"
    if "bias" in problem and problem["bias"].shape != (n,):
        return f"gemm_w8: bias has shape {problem['bias'].shape}, not {(n,)}"
    return None


def _common(problem: Problem) -> tuple[dict[str, str | int | float], dict[str, Any]]:
    (m, k), n = problem["x"].shape, problem["w"].shape[0]
    group = int(problem.attrs["group"])
    arguments: dict[str, str | int | float] = {
        "x": "x", "w": "w", "scales": "scales", "M": m, "N": n, "K": k,
        "scale_columns": k // group, "x_stride": problem["x"].stride[0],
    }  # fmt: skip
    constants: dict[str, Any] = {
        "GROUP": 0 if group == k else group, "ZERO": int(problem.attrs.get("zero", 0)),
    }  # fmt: skip
    if "mins" in problem:
        arguments["mins"] = "mins"
    else:
        constants["mins"] = None
    return arguments, constants


def _bias(problem: Problem, arguments: dict[str, Any], constants: dict[str, Any]) -> None:
    if "bias" in problem:
        arguments["bias"] = "bias"
    else:
        constants["bias"] = None


class Gemv:
    """Up to 8 tokens on vector units. config: rows a program, codes along K a step, warps, stages
    of asynchronous copies (1: straight to registers)."""

    name = "gemm_w8.triton.gemv"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if (reason := gemm_reason(problem)) is not None:
            return reason
        if problem["x"].shape[0] > MOST_TOKENS:
            return f"gemm_w8: {problem['x'].shape[0]} tokens; at most {MOST_TOKENS} here"
        if problem["x"].shape[1] % 32:
            return f"gemm_w8: this kernel needs K a multiple of 32, not {problem['x'].shape[1]}"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        tokens = next_power_of_2(problem["x"].shape[0])
        k = problem["x"].shape[1]
        found: list[Config] = []
        for rows, warps, stages in (
            (4, 4, 1), (8, 4, 1), (2, 4, 1), (4, 2, 1), (8, 2, 1), (4, 8, 1), (2, 8, 1), (4, 1, 1),
            (4, 4, 3), (8, 2, 3),
        ):  # fmt: skip
            block = warps * target.wave * 16
            if rows * tokens <= 16 and block < 2 * k:
                found.append({"rows": rows, "block": block, "warps": warps, "stages": stages})
        block = max(32, min(target.wave * 16, next_power_of_2(k)))
        return found or [{"rows": 2, "block": block, "warps": 1, "stages": 1}]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.gemm_w8.kernel_triton import gemv

        tokens, n = problem["out"].shape
        if tokens == 0:
            return Plan(())
        arguments, constants = _common(problem)
        _bias(problem, arguments, constants)
        arguments |= {"out": "out", "out_stride": problem["out"].stride[0]}
        arguments["half"] = problem["x"].shape[1] // 2
        constants |= {
            "TOKENS": next_power_of_2(tokens), "ROWS": config["rows"], "BLOCK": config["block"],
            "STAGES": config["stages"],
        }  # fmt: skip
        grid = (cdiv(n, config["rows"]), 1, 1)
        options: dict[str, Any] = {"num_warps": config["warps"], "num_stages": config["stages"]}
        return Plan((Launch(gemv, grid, arguments, constants, **options),))


class Tiled:
    """Any number of tokens on matrix units: weights become 16-bit floats on the way there."""

    name = "gemm_w8.triton.tiled"

    def supports(self, problem: Problem, target: Target) -> str | None:
        return gemm_reason(problem)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        (m, k), n = problem["x"].shape, problem["w"].shape[0]
        few = max(16, next_power_of_2(m))
        tiles = (
            ((few, 64, 128, 4, 4), (few, 64, 128, 4, 3), (few, 32, 128, 4, 3), (few, 64, 64, 4, 3),
             (few, 128, 64, 4, 3), (few, 32, 64, 2, 2))
            if m <= 64
            else ((128, 128, 64, 8, 3), (128, 128, 64, 8, 2), (64, 128, 64, 4, 3),
                  (128, 64, 64, 4, 3), (64, 64, 32, 4, 2), (64, 64, 64, 4, 2))
        )  # fmt: skip
        found: list[Config] = []
        for bm, bn, bk, warps, stages in tiles:
            if target.matrix_unit != "wgmma" and (bm + bn) * bk > 128 * 64:
                continue  # too many registers for smaller matrix units
            programs, split = cdiv(m, bm) * cdiv(n, bn), 1
            while split < 16 and programs * split < target.compute_units and k > split * 8 * bk:
                split *= 2
            shared = (bm + bn) * bk * 2 + stages * (bm * 2 + bn) * bk
            if shared <= target.shared_bytes and warps * target.wave <= 1024:
                values = (("bm", bm), ("bn", bn), ("bk", bk), ("warps", warps))
                found.append(dict(values) | {"stages": stages, "split": split})
        return found or [{"bm": 16, "bn": 32, "bk": 64, "warps": 2, "stages": 1, "split": 1}]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.gemm_w4.kernel_triton import sum_splits
        from pumice.operators.gemm_w8.kernel_triton import tiled

        (m, k), n = problem["x"].shape, problem["w"].shape[0]
        if m == 0:
            return Plan(())
        split, blocks_n = config["split"], cdiv(n, config["bn"])
        arguments, constants = _common(problem)
        arguments |= {"blocks_n": blocks_n, "k_blocks": cdiv(cdiv(k, config["bk"]), split)}
        constants |= {"BM": config["bm"], "BN": config["bn"], "BK": config["bk"]}
        constants |= {"STAGES": config["stages"]}
        grid = (cdiv(m, config["bm"]) * blocks_n, split, 1)
        options: dict[str, Any] = {"num_warps": config["warps"], "num_stages": config["stages"]}
        if split == 1:
            _bias(problem, arguments, constants)
            arguments |= {"out": "out", "out_stride": problem["out"].stride[0], "split_stride": 0}
            return Plan((Launch(tiled, grid, arguments, constants, **options),))
        arguments |= {"out": "partial", "out_stride": n, "split_stride": m * n}
        constants["bias"] = None
        block = min(1024, next_power_of_2(n))
        last: dict[str, str | int | float] = {"partial": "partial", "out": "out", "M": m, "N": n}
        last |= {"out_stride": problem["out"].stride[0]}
        fixed: dict[str, Any] = {"SPLITS": split, "BLOCK": block}
        _bias(problem, last, fixed)
        return Plan(
            (
                Launch(tiled, grid, arguments, constants, **options),
                Launch(sum_splits, (m * cdiv(n, block), 1, 1), last, fixed, num_warps=4),
            ),
            {"partial": TensorSpec((split, m, n), "float32")},
        )
