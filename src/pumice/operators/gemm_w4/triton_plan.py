"""Plans of gemm_w4 and dequantize_w4."""

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

MOST_TOKENS = 16  # of the kernel on small matrix instructions
_FLOATS = ("float16", "bfloat16")
_OUT = (*_FLOATS, "float32")
# (tokens, outputs, K, warps, stages) of tiles for many tokens, with wgmma and without. Weights
# packed in "blocks" need 128 along K.
_TILES = {
    True: (
        (128, 128, 128, 8, 2), (128, 128, 64, 8, 3), (128, 128, 128, 8, 3), (256, 128, 128, 8, 2),
        (128, 256, 64, 8, 3), (128, 128, 64, 4, 3), (64, 128, 128, 4, 2), (64, 128, 64, 4, 3),
        (256, 128, 64, 8, 3), (256, 64, 128, 8, 2), (64, 64, 128, 4, 2), (64, 64, 64, 4, 3),
    ),
    False: (
        (64, 64, 32, 4, 2), (128, 64, 32, 8, 2), (64, 128, 32, 8, 2), (128, 128, 32, 8, 2),
        (64, 64, 64, 4, 2), (64, 64, 128, 4, 1), (64, 64, 128, 8, 2), (32, 64, 128, 4, 2),
        (128, 64, 64, 8, 2), (64, 32, 128, 4, 2),
    ),
}  # fmt: skip
# (outputs, K, warps, stages) of tiles for up to 64 tokens.
_FEW = (
    (64, 128, 4, 4), (64, 128, 4, 3), (128, 128, 8, 3), (128, 128, 4, 3), (64, 256, 4, 3),
    (32, 128, 2, 4), (64, 64, 4, 4), (32, 256, 4, 3), (128, 64, 4, 4), (64, 128, 4, 2),
    (32, 64, 2, 2),
)  # fmt: skip
_FEW_REGISTERS = (
    (64, 128, 4, 2), (64, 64, 4, 2), (32, 128, 4, 2), (32, 64, 4, 2), (128, 64, 8, 2),
    (32, 128, 2, 2), (32, 64, 2, 2), (64, 128, 4, 1),
)  # fmt: skip


def weight_reason(operator: str, problem: Problem, target: Target) -> str | None:
    """Why packed weights cannot be read, or None."""
    w, scales, group = problem["w"], problem["scales"], int(problem.attrs["group"])
    if len(w.shape) != 2 or w.dtype != "int32" or not w.contiguous or not w.aligned:
        return f"{operator}: w must be contiguous int32[N, K/8], aligned to 16 bytes"
    k = w.shape[1] * 8
    if group % 32 or group & (group - 1) or k % group:
        return f"{operator}: group {group} must be 32, 64, 128 … and divide K = {k}"
    packing = problem.attrs.get("packing", "rows")
    if packing not in ("rows", "blocks") or (packing == "blocks" and k % 128):
        return f"{operator}: packing {packing!r} must be 'rows', or 'blocks' where 128 divides K"
    if "mins" in problem and ("zeros" in problem or problem.attrs.get("zero")):
        return f"{operator}: mins go without zeros, and with attr zero = 0"
    for name, dtype in (("scales", "float16"), ("zeros", "uint8"), ("mins", "float16")):
        if name in problem:
            spec = problem[name]
            if spec.shape != (w.shape[0], k // group) or spec.dtype != dtype:
                allowed = (w.shape[0], k // group)
                return f"{operator}: {name} is {spec.dtype}{spec.shape}, not {dtype}{allowed}"
            if not spec.contiguous:
                return f"{operator}: {name} must be contiguous"
    return None if scales.elements else f"{operator}: there are no weights"


def gemm_reason(problem: Problem, target: Target) -> str | None:
    """What no kernel of gemm_w4 does."""
    x, w = problem["x"], problem["w"]
    if len(x.shape) != 2 or x.dtype not in _FLOATS:
        return f"gemm_w4: x is {x.dtype}{x.shape}; float16 or bfloat16 [M, K] is allowed"
    if (out := str(problem.attrs.get("out_dtype", x.dtype))) not in _OUT:
        return f"gemm_w4: out_dtype {out!r} is none of {_OUT}"
    if x.shape[1] > 1 and x.stride[1] != 1:
        return f"gemm_w4: x has strides {x.stride}; the last must be 1"
    if (reason := weight_reason("gemm_w4", problem, target)) is not None:
        return reason
    if x.shape[1] != w.shape[1] * 8:
        return f"gemm_w4: x has K = {x.shape[1]}, the weights {w.shape[1] * 8}"
    if "bias" in problem and (
        problem["bias"].shape != w.shape[:1] or not problem["bias"].contiguous
    ):
        return f"gemm_w4: bias must be contiguous [{w.shape[0]}]"
    return None


def instructions(target: Target) -> int:
    """CODE of the kernels on a target."""
    return {"cuda": 1, "rocm": 2}.get(target.api, 0)


def _blocks(problem: Problem) -> bool:
    return bool(problem.attrs.get("packing", "rows") == "blocks")


def _common(problem: Problem) -> tuple[dict[str, str | int | float], dict[str, Any]]:
    """Weights and what belongs to them."""
    arguments: dict[str, str | int | float] = {"w": "w", "scales": "scales"}
    arguments |= {"words": problem["w"].shape[1], "scale_columns": problem["scales"].shape[1]}
    constants: dict[str, Any] = {"ZERO": int(problem.attrs.get("zero", 0))}
    for name in ("zeros", "mins"):
        if name in problem:
            arguments[name] = name
        else:
            constants[name] = None
    return arguments, constants


def _bias(problem: Problem, arguments: dict[str, Any], constants: dict[str, Any]) -> None:
    if "bias" in problem:
        arguments["bias"] = "bias"
    else:
        constants["bias"] = None


def _most_sums(target: Target) -> int:
    """Sums that a thread of `Gemv` holds without spilling, beside what it multiplies."""
    return 16 if target.api == "cuda" else 8


def _most_tokens(problem: Problem, target: Target) -> int:
    """Tokens whose activations fit a thread of `Gemv` beside their sums: 16 pairs each, and in
    bfloat16 some more while they are scaled, for which RDNA's 256 registers are few."""
    brain = problem["x"].dtype == "bfloat16"
    return 2 if brain and target.matrix_unit == "wmma" else 8


class Matrix:
    """Up to 16 tokens on matrix units, from weights packed in blocks. config: warps that share K
    for the same rows; how often 16 rows; whether words are loaded a step ahead; steps unrolled;
    stages of asynchronous copies (1: straight to registers)."""

    name = "gemm_w4.triton.matrix"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if (reason := gemm_reason(problem, target)) is not None:
            return reason
        if not _blocks(problem):
            return "gemm_w4: this kernel reads weights packed in 'blocks'"
        if target.api != "cuda":
            return f"gemm_w4: this kernel is made for NVIDIA's matrix units, not {target.name}"
        if problem["x"].shape[0] > MOST_TOKENS:
            return f"gemm_w4: {problem['x'].shape[0]} tokens; at most {MOST_TOKENS} here"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        blocks = problem["w"].shape[1] // 16
        found: list[Config] = []
        for warps, repeat, ahead, unroll, stages in (
            (4, 1, 1, 1, 1), (4, 1, 0, 1, 1), (4, 2, 1, 1, 1), (8, 1, 0, 1, 1), (8, 1, 1, 1, 1),
            (4, 1, 0, 2, 1), (4, 1, 1, 2, 1), (8, 1, 0, 2, 1), (4, 2, 0, 1, 1), (16, 1, 0, 1, 1),
            (16, 1, 1, 1, 1), (2, 1, 1, 2, 1), (2, 2, 1, 1, 1), (8, 2, 0, 1, 1), (4, 1, 0, 4, 1),
            (4, 1, 0, 1, 3), (4, 1, 0, 1, 5), (4, 2, 0, 1, 3), (8, 1, 0, 1, 3), (2, 1, 0, 1, 5),
        ):  # fmt: skip
            if warps * unroll <= blocks:
                values = (("warps", warps), ("repeat", repeat), ("ahead", ahead))
                found.append(dict(values) | {"unroll": unroll, "stages": stages})
        return found or [{"warps": 1, "repeat": 1, "ahead": 0, "unroll": 1, "stages": 1}]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.gemm_w4.kernel_matrix_triton import matrix

        tokens = problem["x"].shape[0]
        n, words = problem["w"].shape
        if tokens == 0 or n == 0:
            return Plan(())
        arguments, constants = _common(problem)
        _bias(problem, arguments, constants)
        blocks = words // 16
        arguments |= {"x": "x", "out": "out", "M": tokens, "N": n, "nothing": 0}
        arguments |= {"x_stride": problem["x"].stride[0], "out_stride": problem["out"].stride[0]}
        arguments |= {"blocks": blocks, "share": cdiv(blocks, config["warps"])}
        constants |= {
            "GROUP": int(problem.attrs["group"]), "CODE": config.get("code", 1),
            "BRAIN": problem["x"].dtype == "bfloat16", "WARPS": config["warps"],
            "REPEAT": config["repeat"], "AHEAD": bool(config.get("ahead")),
            "UNROLL": config["unroll"], "TOKENS": 8 if tokens <= 8 else 16,
            "STAGES": config["stages"],
        }  # fmt: skip
        grid = (cdiv(n, 16 * config["repeat"]), 1, 1)
        options: dict[str, Any] = {"num_warps": config["warps"], "num_stages": config["stages"]}
        return Plan((Launch(matrix, grid, arguments, constants, **options),))


class Gemv:
    """Up to 8 tokens on vector units, in packed arithmetic. config: rows a program, groups of 32
    along K a step, warps, whether weights are loaded a step ahead, stages of asynchronous copies
    (1: straight to registers)."""

    name = "gemm_w4.triton.gemv"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if (reason := gemm_reason(problem, target)) is not None:
            return reason
        x = problem["x"]
        if problem.attrs.get("packing", "rows") != "rows":
            return "gemm_w4: this kernel reads weights packed in 'rows'"
        if x.shape[0] > (most := _most_tokens(problem, target)):
            return f"gemm_w4: {x.shape[0]} tokens of {x.dtype}; at most {most} fit {target.name}"
        if not x.aligned or (x.shape[0] > 1 and x.stride[0] % 8):
            return "gemm_w4: this kernel needs rows of x aligned to 16 bytes"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        tokens = next_power_of_2(problem["x"].shape[0])
        words = problem["w"].shape[1]
        wave = target.wave
        # A wave reads `wave` groups of a row at once: 1024 codes on 32 lanes.
        shapes = (
            (4, 2, 0, 1), (4, 1, 0, 1), (4, 4, 0, 1), (4, 1, 1, 1), (4, 2, 1, 1), (4, 4, 1, 1),
            (2, 2, 0, 1), (2, 1, 1, 1), (2, 2, 1, 1), (2, 4, 0, 1), (8, 1, 0, 1), (8, 2, 0, 1),
            (8, 4, 0, 1), (8, 1, 1, 1), (16, 2, 0, 1), (1, 4, 0, 1), (1, 2, 1, 1), (8, 2, 0, 3),
        )  # fmt: skip
        found: list[Config] = []
        most = _most_sums(target)
        for rows, warps, ahead, stages in shapes:
            groups = warps * wave
            if (rows * tokens > most and tokens > 1) or groups > max(words // 2, wave):
                continue
            found.append(
                {"rows": rows, "groups": groups, "warps": warps, "ahead": ahead, "stages": stages}
            )
        return found or [{"rows": 1, "groups": wave, "warps": 1, "ahead": 0, "stages": 1}]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.gemm_w4.kernel_triton import gemv

        tokens, k = problem["x"].shape
        n = problem["w"].shape[0]
        if tokens == 0 or n == 0:
            return Plan(())
        arguments, constants = _common(problem)
        _bias(problem, arguments, constants)
        arguments |= {"x": "x", "out": "out", "M": tokens, "N": n, "groups": k // 32}
        arguments |= {"x_stride": problem["x"].stride[0] // 2}
        arguments |= {"out_stride": problem["out"].stride[0]}
        code = config.get("code", instructions(target))
        brain = problem["x"].dtype == "bfloat16"
        if "mins" in problem and code == 1:
            constants["ZERO"] = 8  # in the middle of the codes: float16 sums stay small
        constants |= {
            "PER": int(problem.attrs["group"]) // 32,
            "CODE": code, "BRAIN": brain, "SCALE_X": code == 1 or (code == 2 and brain),
            "TOKENS": next_power_of_2(tokens), "ROWS": config["rows"],
            "GROUPS": config["groups"], "AHEAD": bool(config.get("ahead")),
            "STAGES": config["stages"],
        }  # fmt: skip
        grid = (cdiv(n, config["rows"]), 1, 1)
        return Plan(
            (
                Launch(
                    gemv, grid, arguments, constants,
                    num_warps=config["warps"], num_stages=config["stages"],
                ),
            )
        )  # fmt: skip


class Tiled:
    """Any number of tokens on matrix units: weights become 16-bit floats on the way there. config:
    the tile, and how many programs share K."""

    name = "gemm_w4.triton.tiled"

    def supports(self, problem: Problem, target: Target) -> str | None:
        return gemm_reason(problem, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        m, k = problem["x"].shape
        n = problem["w"].shape[0]
        found: list[Config] = []

        def add(bm: int, bn: int, bk: int, warps: int, stages: int) -> None:
            programs = cdiv(m, bm) * cdiv(n, bn)
            full = 2 * target.compute_units
            split = 1
            while split < 16 and programs * split * 2 <= full and k // (split * 2) >= 4 * bk:
                split *= 2
            tile = (bm + bn) * bk * 2 + stages * (bm * bk * 2 + bn * bk // 2)
            whole = 128 if _blocks(problem) else 32
            if (
                tile <= target.shared_bytes
                and bk % whole == 0
                and bk <= max(k, whole)
                and warps * target.wave <= 1024
            ):
                values = (("bm", bm), ("bn", bn), ("bk", bk), ("warps", warps))
                found.append(dict(values) | {"stages": stages, "split": split})

        if m <= 64:
            bm = max(16, next_power_of_2(m))
            # AMD's compiler keeps a stage in registers, of which RDNA has 256 a lane.
            few = _FEW_REGISTERS if target.matrix_unit == "wmma" else _FEW
            for bn, bk, warps, stages in few:
                add(bm, bn, bk, warps, stages)
        else:
            for bm, bn, bk, warps, stages in _TILES[target.matrix_unit == "wgmma"]:
                add(bm, bn, bk, warps, stages)
        bk = 128 if _blocks(problem) else 32
        return found or [{"bm": 16, "bn": 32, "bk": bk, "warps": 2, "stages": 1, "split": 1}]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.gemm_w4.kernel_triton import sum_splits, tiled

        m, k = problem["x"].shape
        n = problem["w"].shape[0]
        if m == 0 or n == 0:
            return Plan(())
        split = config["split"]
        arguments, constants = _common(problem)
        blocks_n = cdiv(n, config["bn"])
        arguments |= {"x": "x", "M": m, "N": n, "K": k, "x_stride": problem["x"].stride[0]}
        arguments |= {"blocks_n": blocks_n, "k_blocks": cdiv(cdiv(k, config["bk"]), split)}
        code = config.get("code", instructions(target))
        constants |= {
            "GROUP": int(problem.attrs["group"]), "CODE": code if code == 1 else 0,
            "BRAIN": problem["x"].dtype == "bfloat16",
            "BLOCKS": _blocks(problem), "BM": config["bm"], "BN": config["bn"], "BK": config["bk"],
            "STAGES": config["stages"],
        }  # fmt: skip
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


class Dequantize:
    """Packed weights to 16-bit ones."""

    name = "dequantize_w4.triton"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if problem.attrs["out_dtype"] not in _FLOATS:
            return f"dequantize_w4: out_dtype {problem.attrs['out_dtype']!r} is none of {_FLOATS}"
        if problem["scales"].elements == 0:
            return None
        return weight_reason("dequantize_w4", problem, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        return [
            {"bn": bn, "bk": bk, "warps": warps}
            for bn, bk, warps in ((8, 512, 4), (16, 256, 4), (4, 1024, 4), (8, 1024, 8))
        ]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.gemm_w4.kernel_triton import dequantize_tiles

        n, words = problem["w"].shape
        if n == 0 or words == 0:
            return Plan(())
        arguments, constants = _common(problem)
        blocks = cdiv(words * 8, config["bk"])
        arguments |= {"out": "out", "N": n, "K": words * 8, "column_blocks": blocks}
        arguments |= {"out_stride": problem["out"].stride[0]}
        code = config.get("code", instructions(target))
        constants |= {
            "GROUP": int(problem.attrs["group"]), "CODE": code if code == 1 else 0,
            "BRAIN": problem["out"].dtype == "bfloat16", "BLOCKS": _blocks(problem),
            "BN": config["bn"], "BK": config["bk"],
        }  # fmt: skip
        grid = (cdiv(n, config["bn"]) * blocks, 1, 1)
        return Plan(
            (Launch(dequantize_tiles, grid, arguments, constants, num_warps=config["warps"]),)
        )
