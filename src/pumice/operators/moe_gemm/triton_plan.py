"""Launches of `moe_gemm`: sort, gate and up, down, sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.dtypes import itemsize
from pumice.operators.gemm.product import FP8
from pumice.operators.gemm.tiles import options
from pumice.operators.moe_gemm.align import align, most_blocks
from pumice.operators.moe_gemm.kernel_triton import experts_down, experts_sum, experts_up
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

GROUP = 128
_MOST_EXPERTS = 512
_INT32 = 2**31
# (BM, BN of gate and of up, BK, warps, stages) by matrix unit, for 16-bit inputs.
_TILES = {
    "wgmma": (
        (128, 128, 64, 8, 4), (128, 128, 64, 8, 3), (128, 64, 64, 8, 4), (128, 64, 64, 4, 4),
        (64, 128, 64, 8, 4), (64, 128, 64, 4, 4), (64, 64, 128, 4, 3), (64, 64, 64, 4, 4),
        (32, 64, 128, 4, 4), (32, 128, 64, 4, 4), (16, 64, 128, 4, 4), (16, 128, 64, 4, 4),
        (16, 32, 256, 4, 3), (16, 32, 128, 4, 5),
    ),
    "mma": (
        (128, 64, 32, 8, 3), (64, 64, 32, 4, 4), (64, 64, 64, 8, 3), (32, 64, 64, 4, 3),
        (16, 64, 64, 4, 4), (16, 32, 128, 4, 3),
    ),
    "mfma": (
        (128, 128, 64, 8, 2), (128, 64, 64, 8, 2), (64, 128, 64, 8, 2), (64, 64, 64, 4, 2),
        (32, 64, 64, 4, 2), (32, 64, 128, 4, 2), (16, 64, 128, 4, 2), (16, 32, 256, 4, 2),
    ),
    "wmma": (
        (64, 64, 32, 8, 2), (64, 32, 32, 4, 2), (32, 64, 32, 4, 2), (32, 32, 64, 4, 2),
        (16, 64, 64, 4, 2), (16, 32, 64, 2, 2),
    ),
}  # fmt: skip
# For 8-bit floats, whose columns are a whole block of scales.
_TILES8 = {
    "wgmma": (
        (128, 128, 128, 8, 3), (128, 128, 128, 8, 4), (64, 128, 128, 8, 3), (64, 128, 128, 4, 3),
        (32, 128, 128, 4, 3), (16, 128, 128, 4, 4), (16, 128, 128, 8, 4),
    ),
    "mma": ((64, 128, 64, 8, 3), (32, 128, 64, 4, 3), (16, 128, 128, 4, 2)),
    "mfma": (
        (128, 128, 128, 8, 2), (64, 128, 128, 8, 2), (32, 128, 128, 4, 2), (16, 128, 128, 4, 2),
    ),
    "wmma": ((64, 128, 32, 8, 2), (32, 128, 64, 8, 2), (16, 128, 64, 4, 2)),
}  # fmt: skip


class MoeGrouped:
    """Blocks of entries of one expert, one tile a program; sorted on the device."""

    name = "moe_gemm.triton.grouped"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if target.api not in ("rocm", "cuda"):
            return f"Triton has no backend for {target.name} (api {target.api})"
        x, w1, w2, ids = (problem[name] for name in ("x", "w1", "w2", "ids"))
        if x.dtype not in ("bfloat16", "float16", *FP8) or {w1.dtype, w2.dtype} != {x.dtype}:
            return f"x is {x.dtype}, w1 {w1.dtype}, w2 {w2.dtype}; all must be one of 8 or 16 bits"
        if len(x.shape) != 2 or len(w1.shape) != 3 or w1.shape[1] % 2:
            return f"x and w1 have shapes {x.shape} and {w1.shape}; [T, K], [E, 2F, K] are needed"
        (tokens, k), (experts, rows, _) = x.shape, w1.shape
        shapes = {"w1": (experts, rows, k), "w2": (experts, k, rows // 2), "out": (tokens, k),
                  "weights": ids.shape}  # fmt: skip
        for name, shape in shapes.items():
            if problem[name].shape != shape:
                return f"{name} has shape {problem[name].shape}; {shape} is needed"
        if len(ids.shape) != 2 or ids.shape[0] != tokens or not 1 <= experts <= _MOST_EXPERTS:
            return (
                f"ids have shape {ids.shape}, of {experts} experts; at most {_MOST_EXPERTS} can be"
            )
        if ids.dtype != "int32" or problem["weights"].dtype != "float32":
            return f"ids are {ids.dtype}, weights {problem['weights'].dtype}; int32, float32 needed"
        if not ids.contiguous or not problem["weights"].contiguous:
            return "ids and weights must be contiguous"
        for name in ("x", "w1", "w2", "out"):
            spec = problem[name]
            if spec.elements and spec.shape[-1] > 1 and spec.stride[-1] != 1:
                return f"{name}'s last axis has stride {spec.stride[-1]}; 1 is needed"
        activation = problem.attrs.get("activation", "silu")
        if activation not in ("silu", "gelu", "gelu_tanh"):
            return f"activation is {activation!r}; known: silu, gelu, gelu_tanh"
        return self._scales(problem, target) if x.dtype in FP8 else None

    @staticmethod
    def _scales(problem: Problem, target: Target) -> str | None:
        if problem["x"].dtype not in target.dtypes:
            return f"{target.name} has no matrix unit for {problem['x'].dtype}"
        (tokens, k), (experts, rows, _) = problem["x"].shape, problem["w1"].shape
        if rows // 2 % GROUP:
            return f"F is {rows // 2}; with block scales it must be a multiple of {GROUP}"
        deep = cdiv(k, GROUP)
        shapes = {"x_scale": (tokens, deep), "w1_scale": (experts, rows // GROUP, deep),
                  "w2_scale": (experts, deep, rows // 2 // GROUP)}  # fmt: skip
        for name, shape in shapes.items():
            if name not in problem:
                return f"{name} is missing; float32 {shape} is needed"
            if problem[name].shape != shape or problem[name].dtype != "float32":
                return f"{name} is {problem[name].dtype} {problem[name].shape}; float32 {shape}"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        """Block heights nearest to the entries that an expert has on average."""
        fp8 = problem["x"].dtype in FP8
        unit = "wgmma" if target.matrix_unit == "tcgen05" else str(target.matrix_unit)
        size = itemsize(problem["x"].dtype)
        average = problem["ids"].elements / problem["w1"].shape[0]
        # Sums before and after scaling, of gate and of up: 128 rows of them spill on NVIDIA.
        tallest = 64 if fp8 and target.api == "cuda" else 128
        wanted = min(tallest, max(16, next_power_of_2(int(average))))
        found: list[Config] = []
        for bm, bn, bk, warps, stages in (_TILES8 if fp8 else _TILES)[unit]:
            buffers = stages if target.api == "cuda" else max(1, stages - 1)
            if buffers * (bm + 2 * bn) * bk * size > target.shared_bytes - 1024:
                continue
            down = GROUP if fp8 else 2 * bn
            found.append({"BM": bm, "BN": bn, "BK": bk, "warps": warps, "stages": stages,
                          "down": down})  # fmt: skip
        near = sorted(found, key=lambda c: abs(c["BM"].bit_length() - wanted.bit_length()))
        return near[:8]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        (tokens, k), (experts, rows, _) = problem["x"].shape, problem["w1"].shape
        width = rows // 2
        if tokens == 0 or k == 0:
            return Plan(())
        entries = problem["ids"].elements
        bm = config["BM"]
        blocks = most_blocks(entries, experts, bm)
        launches, workspaces = align(entries, experts, bm)
        dtype = problem["x"].dtype
        workspaces["h"] = TensorSpec((entries, width), dtype)
        workspaces["y"] = TensorSpec((entries, k), problem["out"].dtype)
        if dtype in FP8:
            workspaces["h_scale"] = TensorSpec((entries, width // GROUP), "float32")
        sorted_by = {"order": "order", "owners": "owners", "used": "used", "ENTRIES": entries,
                     "blocks": blocks}  # fmt: skip
        launches.append(self._up(problem, target, config, sorted_by))
        launches.append(self._down(problem, target, config, sorted_by))
        launches.append(sum_of(problem, sorted_rows=False))
        return Plan(tuple(launches), workspaces)

    @staticmethod
    def _tile(config: Config, columns: int, blocks: int) -> dict[str, Any]:
        return {"BM": config["BM"], "BN": columns, "BK": config["BK"],
                "GROUP_M": 8 if blocks > 8 else next_power_of_2(blocks)}  # fmt: skip

    def _up(
        self, problem: Problem, target: Target, config: Config, sorted_by: dict[str, Any]
    ) -> Launch:
        k, width = problem["x"].shape[1], problem["w1"].shape[1] // 2
        arguments = sorted_by | {
            "x": "x", "w": "w1", "h": "h", "F": width, "K": k,
            "stride_xm": problem["x"].stride[0], "stride_we": problem["w1"].stride[0],
            "stride_wn": problem["w1"].stride[1],
        }  # fmt: skip
        constants = self._tile(config, config["BN"], sorted_by["blocks"]) | {
            "TOPK": problem["ids"].shape[1], "EVEN_K": k % config["BK"] == 0,
            "ACTIVATION": str(problem.attrs.get("activation", "silu")),
            "BLOCKS": "x_scale" in problem,
            "WIDE": problem["x"].shape[0] * problem["x"].stride[0] >= _INT32,
            "BITWISE": bitwise(problem["x"].dtype, target),
        }  # fmt: skip
        scales = {"x_scale": "x_scale", "w_scale": "w1_scale", "h_scale": "h_scale"}
        _add_scales(problem, scales, arguments, constants)
        grid = (sorted_by["blocks"] * cdiv(width, config["BN"]), 1, 1)
        return Launch(
            experts_up, grid, arguments, constants, config["warps"], config["stages"],
            options(config, target),
        )  # fmt: skip

    def _down(
        self, problem: Problem, target: Target, config: Config, sorted_by: dict[str, Any]
    ) -> Launch:
        n, width = problem["w2"].shape[1:]
        arguments = sorted_by | {
            "h": "h", "w": "w2", "weights": "weights", "y": "y", "N": n, "F": width,
            "stride_we": problem["w2"].stride[0], "stride_wn": problem["w2"].stride[1],
        }  # fmt: skip
        constants = self._tile(config, config["down"], sorted_by["blocks"]) | {
            "EVEN_K": width % config["BK"] == 0, "BLOCKS": "x_scale" in problem,
            "WIDE": sorted_by["ENTRIES"] * width >= _INT32,
        }  # fmt: skip
        scales = {"h_scale": "h_scale", "w_scale": "w2_scale"}
        _add_scales(problem, scales, arguments, constants)
        grid = (sorted_by["blocks"] * cdiv(n, config["down"]), 1, 1)
        return Launch(
            experts_down, grid, arguments, constants, config["warps"], config["stages"],
            options({**config, "BN": config["down"]}, target),
        )  # fmt: skip


def sum_of(problem: Problem, *, sorted_rows: bool) -> Launch:
    """The last launch. sorted_rows: y's rows are in the experts' order, and without weights."""
    tokens, k = problem["x"].shape
    columns = min(1024, next_power_of_2(k))
    optional = ("places", "weights")
    return Launch(
        experts_sum, (tokens, cdiv(k, columns), 1),
        {"y": "y", "ids": "ids", "out": "out", "E": problem["w1"].shape[0], "N": k,
         "stride_om": problem["out"].stride[0],
         **({name: name for name in optional} if sorted_rows else {})},
        {"TOPK": problem["ids"].shape[1], "BN": columns,
         **({} if sorted_rows else dict.fromkeys(optional))},
        num_warps=4, num_stages=1,
    )  # fmt: skip


def _add_scales(
    problem: Problem, scales: dict[str, str], arguments: dict[str, Any], constants: dict[str, Any]
) -> None:
    """Scale tensors and their strides; without them None and zeros."""
    up = "x_scale" in scales
    strides = ("stride_te", "stride_tn", "stride_tk", *(("stride_sm", "stride_sk") if up else ()))
    if "x_scale" not in problem:
        constants |= dict.fromkeys(scales)
        arguments |= dict.fromkeys(strides, 0)
        return
    arguments |= scales
    found = problem[scales["w_scale"]].stride + (problem["x_scale"].stride if up else ())
    arguments |= dict(zip(strides, found, strict=True))
