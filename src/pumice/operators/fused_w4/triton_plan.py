"""Plans of fused_w4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.fused_w4.spec import activation_dtype
from pumice.operators.gemm_w4.triton_plan import instructions, weight_reason
from pumice.operators.triton.plan import (
    Config,
    Launch,
    Plan,
    Problem,
    cdiv,
    next_power_of_2,
)
from pumice.targets import Target

MOST_TOKENS = 8
MOST_NORMED = 4
MOST_NORMING = 6  # programs of a compute unit, each of which norms for itself
_FLOATS = ("float16", "bfloat16")
_PAIRS = 16  # registers that hold a group's activations

# (warps, waves along K, rows a tile, programs a compute unit, ahead, early), the favourites first;
# with a norm, which every program computes, few programs.
_NORMED = (
    (4, 4, 8, 2, 1, 0), (4, 4, 8, 3, 1, 0), (2, 2, 8, 4, 1, 0), (2, 2, 4, 4, 1, 0),
    (4, 4, 16, 2, 0, 0), (4, 4, 4, 2, 1, 0), (8, 4, 16, 1, 1, 0), (4, 4, 8, 2, 1, 1),
    (4, 4, 8, 3, 1, 1), (8, 4, 16, 1, 1, 1), (8, 4, 8, 1, 1, 0), (8, 4, 4, 2, 0, 0),
    (8, 2, 16, 1, 1, 0), (4, 2, 8, 2, 1, 0), (4, 2, 4, 2, 0, 0),
)  # fmt: skip
_SHAPES = (
    (4, 4, 4, 4, 1, 0), (2, 2, 4, 8, 1, 0), (4, 4, 4, 4, 0, 0), (8, 8, 4, 2, 1, 0),
    (4, 4, 4, 5, 1, 0), (4, 4, 4, 3, 1, 0), (4, 4, 4, 2, 1, 0), (8, 8, 4, 2, 0, 0),
    (4, 4, 8, 4, 0, 0), (4, 4, 8, 3, 1, 0), (4, 4, 4, 6, 0, 0), (8, 4, 8, 2, 1, 0),
    (4, 4, 4, 3, 0, 0), (16, 4, 16, 1, 1, 0), (1, 1, 4, 12, 0, 0), (1, 1, 2, 12, 1, 0),
    (2, 2, 4, 8, 0, 0), (2, 2, 2, 10, 1, 0), (4, 2, 8, 3, 1, 0), (8, 1, 16, 1, 1, 0),
    (8, 8, 4, 3, 1, 0), (8, 8, 8, 2, 1, 0), (8, 8, 8, 1, 1, 0), (16, 16, 4, 1, 1, 0),
    (4, 4, 2, 4, 1, 0), (4, 4, 2, 6, 1, 0), (8, 8, 2, 2, 1, 0), (1, 1, 2, 8, 0, 0),
    (2, 2, 2, 4, 0, 0), (4, 4, 2, 2, 0, 0), (16, 16, 2, 1, 1, 0), (8, 8, 2, 1, 0, 0),
    (8, 8, 8, 1, 0, 0), (16, 16, 4, 1, 0, 0), (16, 16, 8, 1, 1, 0), (16, 16, 4, 1, 1, 1),
    (4, 4, 4, 3, 0, 1), (4, 4, 4, 2, 1, 1), (4, 4, 2, 4, 1, 1),
    (4, 4, 4, 4, 1, 1), (4, 4, 8, 4, 0, 1), (8, 4, 8, 2, 1, 1), (16, 4, 16, 1, 1, 1),
    (1, 1, 4, 12, 0, 1), (2, 2, 4, 8, 1, 1), (8, 8, 4, 2, 1, 1), (4, 4, 4, 4, 0, 1),
    (4, 4, 8, 2, 0, 1), (4, 4, 8, 3, 0, 1), (4, 4, 16, 2, 0, 1), (4, 4, 4, 2, 0, 1),
    (4, 4, 2, 2, 1, 1), (8, 8, 4, 2, 0, 1), (8, 8, 4, 1, 1, 1), (8, 8, 2, 2, 1, 1),
    (8, 8, 8, 2, 0, 1), (8, 8, 4, 3, 0, 1), (16, 16, 4, 1, 0, 1), (8, 8, 8, 1, 0, 1),
    (4, 2, 8, 3, 0, 1), (4, 2, 8, 2, 1, 1), (4, 2, 4, 3, 0, 1), (4, 2, 8, 2, 0, 1),
    (8, 2, 16, 1, 1, 1), (8, 2, 8, 2, 0, 1), (2, 2, 4, 4, 1, 1), (2, 2, 8, 4, 1, 1),
    (2, 2, 4, 6, 0, 1), (4, 1, 8, 3, 0, 1), (4, 1, 8, 2, 1, 1), (4, 1, 8, 2, 0, 1),
    (4, 4, 8, 5, 0, 1), (4, 4, 4, 5, 0, 1), (4, 4, 4, 5, 1, 1), (4, 4, 8, 5, 0, 0),
    (4, 1, 4, 4, 0, 1), (8, 1, 16, 1, 1, 1), (8, 1, 8, 2, 0, 1), (2, 1, 4, 6, 0, 1),
)  # fmt: skip
_FETCHED = (0, 1, 2)  # tiles that a program with an early start asks for before it waits


def fused_reason(problem: Problem, target: Target) -> str | None:
    """What no kernel of fused_w4 does."""
    x, w, attrs = problem["x"], problem["w"], problem.attrs
    normed = "norm_weight" in problem
    if len(x.shape) != 2 or (x.dtype != "float32" if normed else x.dtype not in _FLOATS):
        allowed = "float32, which is normed," if normed else "float16 or bfloat16"
        return f"fused_w4: x is {x.dtype}{x.shape}; {allowed} [M, K] is allowed"
    if normed and attrs.get("dtype") not in _FLOATS:
        return f"fused_w4: dtype {attrs.get('dtype')!r} of normed activations is none of {_FLOATS}"
    if (reason := weight_reason("fused_w4", problem, target)) is not None:
        return reason
    if attrs.get("packing", "rows") != "rows":
        return "fused_w4: this kernel reads weights packed in 'rows'"
    (m, k), n = x.shape, w.shape[0]
    if k != w.shape[1] * 8:
        return f"fused_w4: x has K = {k}, the weights {w.shape[1] * 8}"
    if n * w.shape[1] >= 2**31:
        return f"fused_w4: {n * w.shape[1]:,} words; places are 32-bit numbers"
    if x.stride[1] != 1 or not x.aligned or (m > 1 and x.stride[0] % 8):
        return "fused_w4: rows of x must be contiguous and aligned to 16 bytes"
    if normed and (problem["norm_weight"].shape != (k,) or not problem["norm_weight"].contiguous):
        return f"fused_w4: norm_weight must be contiguous [{k}]"
    if attrs.get("activation") not in (None, "silu") or (attrs.get("activation") and n % 2):
        return f"fused_w4: activation {attrs.get('activation')!r} of {n} rows; 'silu' of even ones"
    if "residual" in problem:
        residual = problem["residual"]
        if residual.dtype != "float32" or residual.shape != (m, n) or residual.stride[1] != 1:
            return f"fused_w4: residual is {residual.dtype}{residual.shape}, not float32{(m, n)}"
        if attrs.get("activation"):
            return "fused_w4: a gated product is not added to the residual stream"
    if "bias" in problem and (problem["bias"].shape != (n,) or not problem["bias"].contiguous):
        return f"fused_w4: bias must be contiguous [{n}]"
    return None


def _registers(problem: Problem, target: Target, shape: tuple[int, ...]) -> int:
    """32-bit registers of a thread, about: activations, words and scales, sums."""
    warps, along, rows, _, ahead, _ = shape
    tokens = next_power_of_2(problem["x"].shape[0])
    words, wide = problem["w"].shape[1], 4 * along * target.wave
    slices = cdiv(words, wide)
    mine = max(1, rows * along // warps)  # rows that a thread meets
    # What a partial slice costs, as ptxas does it.
    held = 0 if words % wide == 0 else 12 if ahead or target.api != "cuda" else 40
    held += slices * ((_PAIRS + 1) * tokens + 5 * mine * (1 + ahead)) + 3 * tokens * mine
    # The norm's values, before they are pairs.
    return max(held, 48 * tokens * along // warps) if "norm_weight" in problem else held


def _fits(problem: Problem, target: Target, shape: tuple[int, ...]) -> bool:
    """Whether as many programs as it says run at once, without spilling."""
    warps, along, rows, units, _, early = shape
    groups = problem["w"].shape[1] // 4
    threads = warps * target.wave
    registers = _registers(problem, target, shape)
    file = 65536 if target.api == "cuda" else 131072 if target.vgprs > 256 else 98304
    return (
        threads <= 1024
        and along * target.wave <= max(next_power_of_2(groups), target.wave)
        and rows * along >= warps
        and registers <= (240 if target.api == "cuda" else 210 if target.wave == 32 else 236)
        and registers * threads * units <= file
        and (units <= MOST_NORMING or "norm_weight" not in problem)
        and (not early or target.matrix_unit in ("wgmma", "tcgen05"))
    )


class Persistent:
    """As many programs as the device runs at once, each with its activations in registers. config:
    groups of 32 codes a step along K; rows a tile; warps; programs a compute unit; whether a tile's
    words are loaded before the tile in front of it is used; whether it begins before the launch in
    front of it has ended (CUDA's programmatic launches), and how many tiles after its first it asks
    for into the second-level cache until then."""

    name = "fused_w4.triton.persistent"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if (reason := fused_reason(problem, target)) is not None:
            return reason
        m = problem["x"].shape[0]
        most, does = (MOST_NORMED, " are normed") if "norm_weight" in problem else (MOST_TOKENS, "")
        if m > most:
            return f"fused_w4: {m} tokens; at most {most}{does} here"
        if not self.configs(problem, target):
            return (
                f"fused_w4: {problem['x'].shape[0]} tokens of {problem['x'].shape[1]} activations "
                f"do not fit in {target.name}'s registers"
            )
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        groups = problem["w"].shape[1] // 4
        shapes = (*(_NORMED if "norm_weight" in problem else ()), *_SHAPES)
        found: list[tuple[bool, Config]] = []
        for shape in dict.fromkeys(shapes):
            if not _fits(problem, target, shape):
                continue
            warps, along, rows, units, ahead, early = shape
            wide = along * target.wave
            wasteful = groups < 0.8 * cdiv(groups, wide) * wide
            values = (("groups", wide), ("rows", rows), ("warps", warps), ("units", units))
            config = dict(values) | {"ahead": ahead, "early": early}
            tiles = cdiv(problem["w"].shape[0], rows)
            later = cdiv(tiles, max(1, target.compute_units * units)) - 1
            for fetch in _FETCHED if early else (0,):
                if fetch <= later:
                    found.append((wasteful, config | ({"fetch": fetch} if fetch else {})))
            if early and "norm_weight" not in problem:
                found.append((wasteful, config | {"spread": 1}))
        return [config for _, config in sorted(found, key=lambda entry: entry[0])]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.fused_w4.kernel_triton import persistent

        (m, k), n = problem["x"].shape, problem["w"].shape[0]
        if m == 0 or n == 0:
            return Plan(())
        attrs = problem.attrs
        optional = ("norm_weight", "zeros", "mins", "bias", "residual", "out")
        arguments: dict[str, str | int | float] = {"x": "x", "w": "w", "scales": "scales"}
        arguments |= {name: name for name in optional if name in problem}
        constants: dict[str, Any] = {name: None for name in optional if name not in problem}
        normed, groups = "norm_weight" in problem, k // 32
        tiles = cdiv(n, config["rows"])
        # The same number of tiles for every program, as far as that goes.
        turns = cdiv(tiles, max(1, target.compute_units * config["units"]))
        arguments |= {
            "M": m, "N": n, "K": k, "half": n // 2, "turns": turns, "words": k // 8,
            "groups": groups, "scale_columns": problem["scales"].shape[1],
            "x_stride": problem["x"].stride[0] // (1 if normed else 2),
            "residual_stride": problem["residual"].stride[0] if "residual" in problem else 0,
            "out_stride": problem["out"].stride[0] if "out" in problem else 0,
            "eps": float(attrs.get("eps", 0.0)),
        }  # fmt: skip
        tokens, slices = next_power_of_2(m), cdiv(groups, config["groups"])
        code = config.get("code", instructions(target))
        brain = activation_dtype(attrs, problem["x"].dtype) == "bfloat16"
        constants |= {
            # In the middle of the codes, where minima follow: float16 sums stay small.
            "ZERO": 8 if "mins" in problem and code == 1 else int(attrs.get("zero", 0)),
            "PER": int(attrs["group"]) // 32, "CODE": code, "BRAIN": brain,
            "SCALE_X": code == 1 or (code == 2 and brain),
            "GATED": bool(attrs.get("activation")),
            # Moving words from one tile's registers to another's, AMD's compiler waits for them.
            "AHEAD": bool(config["ahead"]) and target.api == "cuda",
            "BUFFERS": 2 if config["ahead"] and target.api == "rocm" and turns > 1 else 1,
            "EARLY": bool(config["early"]),
            "TURNS_AHEAD": min(config.get("fetch", 0), turns - 1),
            "LINES": next_power_of_2(cdiv(k // 2, 128)),
            "TOKENS": tokens, "ROWS": config["rows"], "GROUPS": config["groups"],
            "SLICES": slices, "FULL": groups // config["groups"],
            # Columns that are squared and added at once, for the norm.
            "CHUNK": min(next_power_of_2(k), 32 * config["warps"] * target.wave // tokens),
            "SPREAD": bool(config.get("spread")),
        }  # fmt: skip
        options = {"cuda": {"launch_pdl": True}} if config["early"] else {}
        return Plan(
            (
                Launch(
                    persistent, (cdiv(tiles, turns), 1, 1), arguments, constants,
                    num_warps=config["warps"], num_stages=1, options=options,
                ),
            )
        )  # fmt: skip
