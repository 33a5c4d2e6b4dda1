"""Plans of `ring_triton.py`: one token, words on their way in shared memory, on Hopper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.fused_w4.triton_plan import fused_reason
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, cdiv, next_power_of_2
from pumice.targets import Target

_ROWS = 16  # of a tile
# (warps, stages, programs a compute unit, whether activations stay in registers), the favourites
# first.
_SHAPES = (
    (8, 3, 2, 1), (8, 3, 2, 0), (8, 4, 2, 0), (8, 3, 3, 0), (8, 4, 2, 1), (8, 5, 2, 0),
    (8, 6, 2, 0), (4, 6, 3, 0), (4, 4, 4, 0), (8, 6, 1, 1), (4, 6, 2, 1), (16, 3, 1, 1),
    (8, 2, 2, 0),
)  # fmt: skip
_MOST_HELD = 2  # steps whose activations fit a thread's registers


def step_bytes(warps: int) -> int:
    """Of a stage: words and scales."""
    return _ROWS * (128 + 16) * warps


class Ring:
    """One token. config: warps, which share K; stages of the ring; programs a compute unit; whether
    it begins before the launch in front of it has ended (0: no), and when those behind it may (1:
    at once, 2: when this one's activations are there, 3: with the last tile); whether activations
    stay in registers (else they are read again for every tile)."""

    name = "fused_w4.triton.ring"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if (reason := fused_reason(problem, target)) is not None:
            return reason
        if target.matrix_unit != "wgmma":
            return f"fused_w4: this kernel is made for Hopper's shared memory, not {target.name}"
        m, k = problem["x"].shape
        if m != 1:
            return f"fused_w4: {m} tokens; one here"
        if "zeros" in problem or "mins" in problem:
            return "fused_w4: this kernel knows one zero point for all groups, and no minima"
        if problem.attrs["group"] != 32 or k % 128:
            return (
                f"fused_w4: K = {k} in groups of {problem.attrs['group']}; K must be a multiple of "
                "128, and groups are of 32 here"
            )
        if problem.attrs.get("dtype", problem["x"].dtype) != "float16":
            return "fused_w4: this kernel multiplies in float16"
        if not problem["w"].contiguous or not problem["scales"].contiguous:
            return "fused_w4: weights and scales must be contiguous"
        if not problem["w"].aligned or not problem["scales"].aligned:
            return "fused_w4: this kernel needs weights and scales aligned to 16 bytes"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        groups = problem["w"].shape[1] // 4
        normed = "norm_weight" in problem
        found: list[Config] = []
        for warps, stages, units, held in _SHAPES:
            steps = cdiv(groups, 8 * warps)
            shared = stages * step_bytes(warps) + 64 * warps
            shared += (512 * normed + 32 * (1 - held)) * warps * next_power_of_2(steps)
            if (shared + 1024) * units > target.shared_bytes or (held and steps > _MOST_HELD):
                continue
            values = {"warps": warps, "stages": stages, "units": units, "held": held}
            found += [{**values, "early": early} for early in (2, 1, 3)]
        return found

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.fused_w4.ring_triton import ring

        (m, k), n = problem["x"].shape, problem["w"].shape[0]
        if m == 0 or n == 0:
            return Plan(())
        gated = bool(problem.attrs.get("activation"))
        warps = config["warps"]
        tiles = cdiv(n // 2, _ROWS // 2) if gated else cdiv(n, _ROWS)
        steps = cdiv(k // 32, 8 * warps)
        optional = ("norm_weight", "bias", "residual", "out")
        arguments: dict[str, str | int | float] = {"x": "x", "w": "w", "scales": "scales"}
        arguments |= {name: name for name in optional if name in problem}
        constants: dict[str, Any] = {name: None for name in optional if name not in problem}
        arguments |= {
            "N": n, "K": k, "half": n // 2, "tiles": tiles,
            "eps": float(problem.attrs.get("eps", 0.0)),
        }  # fmt: skip
        constants |= {
            "ZERO": int(problem.attrs.get("zero", 0)), "GATED": gated, "EARLY": config["early"],
            "GROUPS": k // 32, "STEPS": steps, "ROOM": next_power_of_2(steps),
            "HELD": bool(config["held"]), "STAGES": config["stages"], "WARPS": warps,
        }  # fmt: skip
        options: dict[str, Any] = {"launch_pdl": True} if config["early"] else {}
        programs = min(tiles, target.compute_units * config["units"])
        launch = Launch(
            ring, (programs, 1, 1), arguments, constants,
            num_warps=warps, num_stages=1, options={"cuda": options},
        )  # fmt: skip
        return Plan((launch,))
