"""The plan of flash attention on Hopper's warp groups: where it runs, tile sizes, one launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.flash_attention.triton_plan import (
    FlashAttention,
    logit_scales,
    sequences_at_once,
    tensor_strides,
)
from pumice.operators.triton.plan import Config, Launch, Plan, Problem
from pumice.targets import Target

_DIMS = (64, 128, 256)
_ROWS = 64  # of a computing warp group: the rows of its matrix instruction


class FlashAttentionHopper:
    """Warp groups that compute beside one that copies, tile after tile; 16-bit floats."""

    name = "flash_attention.triton.hopper"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if target.matrix_unit != "wgmma":
            return f"{target.name} has no asynchronous matrix products of warp groups (sm_90 has)"
        against = FlashAttention().supports(problem, target)
        if against is not None:
            return against
        for name in ("q", "k", "v"):
            tensor = problem[name]
            if tensor.shape[2] not in _DIMS:
                return f"{name} has heads of size {tensor.shape[2]}; this kernel has {_DIMS}"
            if not tensor.aligned or any(stride % 8 for stride in tensor.stride[:2]):
                return (
                    f"{name} (strides {tensor.stride}) is copied 16 bytes at a time: its address "
                    "and its steps must be multiples of that"
                )
        if not self.configs(problem, target):
            return f"q, keys and values of such heads do not fit {target.name}'s shared memory"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        dim, dim_v = problem["q"].shape[2], problem["v"].shape[2]
        return [
            tile
            for tile in _tiles(max(dim, dim_v))
            if shared_bytes(tile, dim, dim_v) <= target.shared_bytes
        ]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        attrs, tensors = problem.attrs, problem.tensors
        q, k, v, out = (problem[name] for name in ("q", "k", "v", "out"))
        tokens, heads, dim = q.shape
        kv_heads = k.shape[1]
        sequences = problem["cu_seqlens_q"].shape[0] - 1
        if tokens == 0 or sequences == 0:
            return Plan(())
        tiles = tokens // (_ROWS * config["CONSUMERS"]) + sequences
        section = config["SECTION"] if heads % config["SECTION"] == 0 else heads
        scale, cap = logit_scales(attrs, dim)
        left, right = attrs.get("window_left", -1), attrs.get("window_right", -1)
        right = 0 if attrs.get("causal") else right
        pointers = {name: name for name in ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "out")}
        launch = Launch(
            kernel=_kernel(),
            grid=(min(tiles * heads, target.compute_units or tiles * heads), 1, 1),
            arguments={
                **pointers,
                **{name: name for name in ("sinks", "lse") if name in tensors},
                **tensor_strides(q, "q"), **tensor_strides(k, "k"),
                **tensor_strides(v, "v"), **tensor_strides(out, "o"),
                "stride_lh": tensors["lse"].stride[0] if "lse" in tensors else tokens,
                "sequences": sequences,
                "tiles": tiles,
                "total": tiles * heads,
                "group": heads // kv_heads,
                "section": section,
                "share": tiles * section,
                "scale": scale,
                "cap": cap,
                "left": max(left, 0),
                "right": max(right, 0),
            },
            constants={
                "table": None, "stride_table": 0, "stride_kb": 0, "stride_vb": 0, "PAGE": 0,
                **{name: None for name in ("sinks", "lse") if name not in tensors},
                "D": dim,
                "DV": v.shape[2],
                "CONSUMERS": config["CONSUMERS"],
                "BLOCK_N": config["BLOCK_N"],
                "STAGES": config["stages"],
                "BLOCK_S": sequences_at_once(sequences),
                "Q_STAGES": q_stages(max(dim, v.shape[2])),
                "REGISTERS": _registers(config, max(dim, v.shape[2])),
                "WINDOW": left >= 0,
                "BOUNDED": right >= 0,
                "CAP": cap > 0,
            },
            num_warps=4,
            num_stages=1,
        )  # fmt: skip
        return Plan((launch,))


def _kernel() -> Any:
    from pumice.operators.flash_attention.hopper_triton import flash_attention_hopper

    return flash_attention_hopper


def q_stages(width: int) -> int:
    """Tiles of queries that lie in shared memory: wide heads leave no room for the next one."""
    return 2 if width <= 128 else 1


def _registers(config: Config, width: int) -> int:
    """Of a thread that computes; the copying ones have the rest."""
    if config["CONSUMERS"] == 3:
        return 160
    return 224 if width <= 128 else 232


def shared_bytes(config: Config, dim: int, dim_v: int) -> int:
    """Of queries, the rings of keys and values, and the rows that are written, with barriers."""
    rows = config["CONSUMERS"] * _ROWS
    queries = q_stages(max(dim, dim_v)) * rows * dim
    return 2 * (queries + config["stages"] * config["BLOCK_N"] * (dim + dim_v)) + rows * dim_v + 256


def _config(n: int, consumers: int, stages: int, section: int = 8) -> Config:
    return {"BLOCK_N": n, "CONSUMERS": consumers, "stages": stages, "SECTION": section}


def _tiles(width: int) -> list[Config]:
    if width <= 64:
        return [_config(128, 2, 3), _config(64, 3, 4), _config(128, 3, 2), _config(64, 2, 4)]
    if width <= 128:
        return [_config(128, 2, 2)]
    return [_config(64, 2, 2)]
