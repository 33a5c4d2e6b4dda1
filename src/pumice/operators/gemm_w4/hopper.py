"""Plans of `hopper_triton.py`: 4-bit products of up to 64 tokens on Hopper's matrix units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.gemm_w4.triton_plan import gemm_reason
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

LEAST_TOKENS, MOST_TOKENS = 2, 64
_REGISTERS = 65536  # of a Hopper's compute unit
_GROUPS = (32, 64, 128)
_BLOCK = 1024  # activations that a program puts in their places
# (rows of weights, blocks of 128 along K, stages, warps, programs a compute unit) by tokens, the
# favourites first.
_SHAPES: dict[int, tuple[tuple[int, int, int, int, int], ...]] = {
    8: ((64, 2, 3, 4, 5), (64, 2, 4, 4, 4), (64, 2, 5, 4, 3), (128, 2, 4, 8, 2), (128, 2, 3, 8, 2),
        (64, 2, 3, 4, 4)),
    16: ((64, 2, 3, 4, 4), (128, 2, 4, 8, 2), (64, 2, 4, 4, 3), (128, 2, 3, 8, 2)),
    32: ((128, 2, 6, 8, 1), (128, 2, 3, 8, 2), (256, 2, 4, 16, 1), (64, 2, 4, 4, 2),
         (64, 2, 2, 4, 4), (128, 2, 5, 8, 1), (128, 1, 5, 8, 2)),
    64: ((128, 2, 4, 8, 1), (256, 2, 3, 16, 1), (128, 2, 2, 8, 2), (256, 2, 3, 8, 1),
         (64, 2, 2, 4, 2), (128, 2, 3, 8, 1)),
}  # fmt: skip


def tokens_of(problem: Problem) -> int:
    """Tokens of a tile."""
    return max(8, next_power_of_2(problem["x"].shape[0]))


def stream_reason(problem: Problem, target: Target) -> str | None:
    """Why the kernel does not run a product whose operands are in order, or None."""
    name, x, group = problem.operator, problem["x"], int(problem.attrs["group"])
    if target.matrix_unit != "wgmma":
        return f"{name}: this kernel is made for Hopper's matrix units, not {target.name}"
    if problem.attrs.get("packing", "rows") != "rows":
        return f"{name}: this kernel reads weights packed in 'rows'"
    if "zeros" in problem:
        return f"{name}: this kernel knows no zero points by group"
    (m, k), n = x.shape, problem["w"].shape[0]
    if not LEAST_TOKENS <= m <= MOST_TOKENS:
        return f"{name}: {m} tokens; {LEAST_TOKENS} to {MOST_TOKENS} here"
    if k % 128 or group not in _GROUPS or (group == 128 and k % 256):
        return (
            f"{name}: K = {k} in groups of {group}; K must be a multiple of 128 (of 256 in groups "
            f"of 128), and groups are {_GROUPS}"
        )
    if not x.aligned or x.stride[0] % 8:
        return f"{name}: this kernel needs rows of x aligned to 16 bytes"
    if not problem["scales"].aligned or ("mins" in problem and not problem["mins"].aligned):
        return f"{name}: this kernel needs scales and minima aligned to 16 bytes"
    if max(n * k // 8, m * x.stride[0]) >= 2**31:
        return f"{name}: {n} x {k} weights; places are 32-bit numbers"
    return None


def stream_configs(problem: Problem, target: Target) -> list[Config]:
    """What fits the target's shared memory, with and without an early begin."""
    tokens, k = tokens_of(problem), problem["x"].shape[1]
    group = int(problem.attrs["group"])
    arrays = 2 if "mins" in problem else 1  # scales, and minima
    found: list[Config] = []
    for rows, blocks, stages, warps, units in _SHAPES[tokens]:
        scales = 128 * blocks // group
        if k % (128 * blocks) or scales < 2:
            continue
        shared = stages * (rows * (64 * blocks + 2 * scales * arrays) + 256 * tokens * blocks)
        if (shared + 1024) * units > target.shared_bytes:
            continue
        values = (("rows", rows), ("blocks", blocks), ("stages", stages), ("warps", warps))
        found += [
            {**dict(values), "units": units, "early": early, "placed": placed}
            for placed, early in ((0, 1), (1, 1))
        ]
    return found or [
        {"rows": 64, "blocks": 1, "stages": 2, "warps": 4, "units": 1, "early": 1, "placed": 0}
    ]


def stream_plan(problem: Problem, target: Target, config: Config) -> Plan:
    from pumice.operators.gemm_w4.hopper_triton import place, stream

    (m, k), n = problem["x"].shape, problem["w"].shape[0]
    if n == 0 or k == 0:
        return Plan(())
    placed = bool(config["placed"])
    gated = bool(problem.attrs.get("activation"))
    tokens, rows, blocks = tokens_of(problem), config["rows"], config["blocks"]
    steps = k // (128 * blocks)
    tiles = cdiv(n // 2, rows // 2) if gated else cdiv(n, rows)
    programs = min(target.compute_units * config["units"], tiles * steps)
    optional = ("mins", "bias", "residual", "out")
    arguments: dict[str, str | int | float] = {name: name for name in ("x", "w", "scales")}
    arguments |= {name: name for name in optional if name in problem}
    constants: dict[str, Any] = {name: None for name in optional if name not in problem}
    arguments |= {
        "partial": "partial", "flags": "flags", "M": m, "N": n, "half": n // 2, "tiles": tiles,
        "k_units": steps, "words": k // 8, "scale_columns": problem["scales"].shape[1],
        "x_stride": problem["x"].stride[0],
        "residual_stride": problem["residual"].stride[0] if "residual" in problem else 0,
        "out_stride": problem["out"].stride[0] if "out" in problem else 0,
    }  # fmt: skip
    constants |= {
        "ZERO": int(problem.attrs.get("zero", 0)), "BRAIN": problem["x"].dtype == "bfloat16",
        "GATED": gated, "EARLY": bool(config["early"]), "PLACED": placed,
        "T": tokens, "BN": rows, "C": blocks,
        "S": 128 * blocks // int(problem.attrs["group"]), "STAGES": config["stages"],
        "WARPS": config["warps"],
    }  # fmt: skip
    options: dict[str, Any] = {"launch_pdl": True} if config["early"] else {}
    registers = _REGISTERS // (config["units"] * config["warps"] * target.wave) // 8 * 8
    if registers < 255:
        options["maxnreg"] = registers
    launches: list[Launch] = []
    workspaces = {
        "partial": TensorSpec((programs, rows, tokens), "float32"),
        "flags": TensorSpec((tiles,), "int32"),
    }
    if placed:
        early = {"cuda": {"launch_pdl": True}} if config["early"] else {}
        launches.append(
            Launch(
                place,
                (m * cdiv(k, _BLOCK), 1, 1),
                {
                    "x": "x", "placed": "placed", "K": k, "blocks": cdiv(k, _BLOCK),
                    "x_stride": problem["x"].stride[0],
                },
                {"EARLY": bool(config["early"]), "BLOCK": _BLOCK, "WARPS": 4},
                num_warps=4, num_stages=1, options=early,
            )
        )  # fmt: skip
        workspaces["placed"] = TensorSpec((m, k), problem["x"].dtype)
        arguments |= {"x": "placed", "x_stride": k}
    launch = Launch(
        stream, (programs, 1, 1), arguments, constants,
        num_warps=config["warps"], num_stages=1, options={"cuda": options},
    )  # fmt: skip
    flags = frozenset({"flags"})
    return Plan((*launches, launch), workspaces, flags, flags)


class Stream:
    """2 to 64 tokens from weights packed in "rows". config: rows of a tile; blocks of 128 along K
    a step; stages of asynchronous copies; warps; programs a compute unit; whether it begins before
    the launch in front of it has ended (CUDA's programmatic launches)."""

    name = "gemm_w4.triton.stream"

    def supports(self, problem: Problem, target: Target) -> str | None:
        return gemm_reason(problem, target) or stream_reason(problem, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        return stream_configs(problem, target)

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        return stream_plan(problem, target, config)
