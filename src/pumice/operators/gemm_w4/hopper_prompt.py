"""Plans of `hopper_prompt_triton.py`: 4-bit products of many tokens on Hopper's matrix units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.gemm.stretches import units_of
from pumice.operators.gemm_w4.triton_plan import gemm_reason
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, TensorSpec, cdiv
from pumice.targets import Target

LEAST_TOKENS = 65
_REGISTERS = 128  # of a lane, that is all that a unit has; groups of warps trade theirs
_GROUPS = (32, 64, 128)
_AHEAD = 16
_TILES = ((256, 128, 4), (128, 128, 6))  # tokens, columns, stages


class Prompt:
    """Weights packed in "rows", decoded by warps of their own on their way to the matrix units.
    config: tokens and columns of a tile, stages of the ring, registers of a lane that decodes,
    blocks that words come to the second cache before they are read, whether it begins before the
    launch in front of it has ended (programmatic launches)."""

    name = "gemm_w4.triton.prompt"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if (reason := gemm_reason(problem, target)) is not None:
            return reason
        name, x, group = problem.operator, problem["x"], int(problem.attrs["group"])
        (m, k), n = x.shape, problem["w"].shape[0]
        if target.matrix_unit != "wgmma":
            return f"{name}: this kernel is made for Hopper's matrix units, not {target.name}"
        if problem.attrs.get("packing", "rows") != "rows":
            return f"{name}: this kernel reads weights packed in 'rows'"
        if "zeros" in problem:
            return f"{name}: this kernel knows no zero points by group"
        if "residual" in problem or problem.attrs.get("activation"):
            return f"{name}: this kernel knows no activation and no residual"
        most = 128 * target.compute_units
        if m and not LEAST_TOKENS <= m <= most:
            return f"{name}: {m} tokens; {LEAST_TOKENS} to {most} here"
        if k == 0 or k % 128 or group not in _GROUPS:
            return f"{name}: K = {k} in groups of {group}; multiples of 128, groups of {_GROUPS}"
        if not x.aligned or x.stride[0] % 8:
            return f"{name}: this kernel needs rows of x aligned to 16 bytes"
        if not problem["w"].contiguous or not problem["scales"].contiguous:
            return f"{name}: this kernel needs weights without gaps"
        if n * k // 8 >= 2**31:
            return f"{name}: {n} x {k} weights; places are 32-bit numbers"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        # Bfloat16 and minima take more registers to decode.
        more = problem["x"].dtype == "bfloat16" or "mins" in problem
        least = min(256, problem["x"].shape[0])
        tiles = sorted(_TILES, key=lambda tile: cdiv(least, tile[0]) * tile[0] * 256 - tile[0])
        return [
            {
                "BM": bm, "BN": bn, "stages": stages, "ahead": _AHEAD,
                "decoder": 120 if more else 104, "early": 1,
            }
            for bm, bn, stages in tiles
        ]  # fmt: skip

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.gemm_w4.hopper_prompt_triton import prompt

        (m, k), n = problem["x"].shape, problem["w"].shape[0]
        if m == 0 or n == 0:
            return Plan(())
        bm, bn = config["BM"], config["BN"]
        rows = cdiv(m, bm)
        strips = cdiv(n, bn)
        most = min(target.compute_units // rows, strips * (k // 128))
        units = units_of(strips, k // 64, most)
        optional = ("mins", "bias", "residual")
        arguments: dict[str, str | int | float] = {
            name: name for name in ("x", "w", "scales", "out", "partial", "flags", *optional)
            if name in problem or name in ("partial", "flags")
        }  # fmt: skip
        arguments |= {
            "M": m, "N": n, "K": k, "words": k // 8, "scale_columns": problem["scales"].shape[1],
            "stride_xm": problem["x"].stride[0], "stride_om": problem["out"].stride[0],
            "stride_rm": 0,
        }  # fmt: skip
        constants: dict[str, Any] = {name: None for name in optional if name not in problem}
        constants |= {
            "BM": bm, "BN": bn, "STAGES": config["stages"], "GROUP": int(problem.attrs["group"]),
            "ZERO": int(problem.attrs.get("zero", 0)), "BRAIN": problem["x"].dtype == "bfloat16",
            "EARLY": bool(config["early"]), "ACTIVATION": "none",
            "DECODER": config["decoder"], "AHEAD": config["ahead"],
        }  # fmt: skip
        early = {"launch_pdl": True} if config["early"] else {}
        programs = rows * units
        launch = Launch(
            prompt, (programs, 1, 1), arguments, constants, num_warps=4, num_stages=1,
            options={"cuda": {"maxnreg": _REGISTERS, **early}}, scratch="descriptors",
        )  # fmt: skip
        workspaces = {
            "descriptors": TensorSpec((programs, 128), "int8"),
            "partial": TensorSpec((programs, bm, bn), "float32"),
            "flags": TensorSpec((programs, bm // 64), "int32"),
        }
        flags = frozenset({"flags"})
        return Plan((launch,), workspaces, flags, flags)
