"""The plan of flash attention on Hopper's warp groups: where it runs, tile sizes, one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pumice.operators.flash_attention.triton_plan import (
    FlashAttention,
    logit_scales,
    sequences_at_once,
    tensor_strides,
)
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, TensorSpec, cdiv
from pumice.targets import Target

_DIMS = (128, 256)  # of 64, the tiled kernel was measured faster under a causal mask
_ROWS = 128  # of a tile: two warp groups' matrix instructions
_REGISTERS = 240  # of a thread that computes; those of the warp that copies have 24
_SHARE = 168  # registers of a thread when all have as many; groups of warps trade theirs
_DESCRIPTORS = 3 * 128  # bytes: of q, keys and values, which every program makes for itself
_FEW = 48  # queries of a sequence that leave most of a tile empty


def hopper_fault(
    target: Target, tensors: Mapping[str, TensorSpec], rows: int, dims: tuple[int, int]
) -> str | None:
    """Why Hopper's kernel does not run, for a person. tensors: those that are copied 16 bytes at a
    time. rows: queries of an average sequence. dims: of the heads of keys and of values."""
    if target.matrix_unit != "wgmma":
        return f"{target.name} has no asynchronous matrix products of warp groups (sm_90 has)"
    for name, tensor in tensors.items():
        if tensor.shape[-1] not in _DIMS:
            return f"{name} has heads of size {tensor.shape[-1]}; this kernel has {_DIMS}"
        if not tensor.aligned or any(stride % 8 for stride in tensor.stride[:-1]):
            return (
                f"{name} (strides {tensor.stride}) is copied 16 bytes at a time: its address and "
                "its steps must be multiples of that"
            )
    if rows <= _FEW:
        return f"{rows} queries a sequence leave most of a tile of {_ROWS} rows empty"
    if not hopper_tiles(target, *dims):
        return f"q, keys and values of sizes {dims} do not fit {target.name}'s shared memory"
    return None


def hopper_tiles(target: Target, dim: int, dim_v: int) -> list[Config]:
    """Tiles that fit shared memory, the favourite first."""
    tiles = _tiles(max(dim, dim_v))
    return [tile for tile in tiles if shared_bytes(tile, dim, dim_v) <= target.shared_bytes]


def hopper_plan(
    target: Target,
    config: Config,
    q: TensorSpec,
    group: int,
    sizes: tuple[int, int, int],
    attrs: Mapping[str, Any],
    arguments: Mapping[str, str | int | float],
    constants: Mapping[str, Any],
) -> Plan:
    """One launch, whose programs take tiles from a counter.

    sizes: keys (with pages, blocks of a cache) that there are at most, columns of values,
    sequences. arguments and constants: what plain and paged attention name differently.
    """
    tokens, heads, dim = q.shape
    keys, dim_v, sequences = sizes
    tiles = tokens // _ROWS + sequences
    wanted = config["SECTION"] or heads
    section = wanted if heads % wanted == 0 else heads
    scale, cap = logit_scales(attrs, dim)
    left, right = attrs.get("window_left", -1), attrs.get("window_right", -1)
    right = 0 if attrs.get("causal") else right
    launch = Launch(
        kernel=_kernel(),
        grid=(min(tiles * heads, target.compute_units or tiles * heads), 1, 1),
        arguments={
            **arguments,
            **tensor_strides(q, "q"),
            "counters": "counters",
            "queries": tokens,
            "heads": heads,
            "keys": keys,
            "kv_heads": heads // group,
            "sequences": sequences,
            "tiles": tiles,
            "total": tiles * heads,
            "group": group,
            "section": section,
            "share": tiles * section,
            "scale": scale,
            "cap": cap,
            "left": max(left, 0),
            "right": max(right, 0),
        },
        constants={
            **constants,
            "D": dim,
            "DV": dim_v,
            "BLOCK_N": config["BLOCK_N"],
            "STAGES": config["stages"],
            "Q_STAGES": q_stages(max(dim, dim_v)),
            "BLOCK_S": sequences_at_once(sequences),
            "REGISTERS": _REGISTERS,
            "WINDOW": left >= 0,
            "BOUNDED": right >= 0,
            "CAP": cap > 0,
        },
        num_warps=4,  # of a part that computes
        num_stages=1,
        options={"cuda": {"maxnreg": _SHARE}},
        scratch="descriptors",
    )
    counters = frozenset({"counters"})
    workspaces = {
        "counters": TensorSpec((2,), "int32"),
        "descriptors": TensorSpec((launch.grid[0], _DESCRIPTORS), "int8"),
    }
    return Plan((launch,), workspaces, counters, counters)


class FlashAttentionHopper:
    """Warp groups that compute beside a warp that copies, tile after tile; 16-bit floats."""

    name = "flash_attention.triton.hopper"

    def supports(self, problem: Problem, target: Target) -> str | None:
        against = FlashAttention().supports(problem, target)
        if against is not None:
            return against
        copied = {name: problem[name] for name in ("q", "k", "v")}
        rows = cdiv(problem["q"].shape[0], max(problem["cu_seqlens_q"].shape[0] - 1, 1))
        dims = problem["k"].shape[2], problem["v"].shape[2]
        return hopper_fault(target, copied, rows, dims)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        return hopper_tiles(target, problem["q"].shape[2], problem["v"].shape[2])

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        tensors = problem.tensors
        q, k, v, out = (problem[name] for name in ("q", "k", "v", "out"))
        sequences = problem["cu_seqlens_q"].shape[0] - 1
        if q.shape[0] == 0 or sequences == 0:
            return Plan(())
        given = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "sinks", "out", "lse")
        arguments: dict[str, str | int | float] = {name: name for name in given if name in tensors}
        arguments |= {**tensor_strides(k, "k"), **tensor_strides(v, "v")}
        arguments |= tensor_strides(out, "o")
        arguments["stride_lh"] = tensors["lse"].stride[0] if "lse" in tensors else q.shape[0]
        constants: dict[str, Any] = {name: None for name in given if name not in tensors}
        constants |= {"table": None, "stride_table": 0, "stride_kb": 0, "stride_vb": 0, "PAGE": 0}
        group = q.shape[1] // k.shape[1]
        sizes = (k.shape[0], v.shape[2], sequences)
        return hopper_plan(target, config, q, group, sizes, problem.attrs, arguments, constants)


def _kernel() -> Any:
    from pumice.operators.flash_attention.hopper_triton import flash_attention_hopper

    return flash_attention_hopper


def q_stages(width: int) -> int:
    """Tiles of queries that lie in shared memory: wide heads leave no room for the next one."""
    return 2 if width <= 128 else 1


def shared_bytes(config: Config, dim: int, dim_v: int) -> int:
    """Of queries, the rings of keys and values, the rows that are written, notes and barriers."""
    queries = q_stages(max(dim, dim_v)) * _ROWS * dim
    keys = config["stages"] * config["BLOCK_N"] * (dim + dim_v)
    return 2 * (queries + keys) + _ROWS * dim_v + 2048


def _tiles(width: int) -> list[Config]:
    """BLOCK_N keys at a time; stages of the rings; SECTION: heads that are worked on together and
    share the cache, 0 all."""
    n = 128 if width <= 128 else 64
    return [{"BLOCK_N": n, "stages": 2, "SECTION": section} for section in (8, 4, 0)]
