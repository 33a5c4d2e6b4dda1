"""The plan of flash attention: checks, tile sizes, one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

LOG2_E = 1.4426950408889634
_FLOATS = ("float16", "bfloat16")


def logit_scales(attrs: Mapping[str, Any], dim: int) -> tuple[float, float]:
    """(scale, cap) of `softmax_triton.softmax_step`."""
    scale, softcap = float(attrs.get("scale", dim**-0.5)), float(attrs.get("softcap") or 0.0)
    if softcap:
        return 2.0 * scale / softcap * LOG2_E, softcap * LOG2_E
    return scale * LOG2_E, 0.0


def attrs_fault(attrs: Mapping[str, Any]) -> str | None:
    """Why an attention's attributes are not allowed, for a person."""
    if "scale" in attrs and not attrs["scale"] > 0:
        return f"scale is {attrs['scale']}; it must be positive"
    if attrs.get("softcap") and not attrs["softcap"] > 0:
        return f"softcap is {attrs['softcap']}; it must be positive, or 0 for none"
    for name in ("window_left", "window_right"):
        if attrs.get(name, -1) < -1:
            return f"{name} is {attrs[name]}; it must be 0 or more, or -1 for no limit"
    return None


def heads_fault(heads: int, kv_heads: int, dims: Mapping[str, int]) -> str | None:
    """Why head counts and sizes are not allowed, for a person."""
    if kv_heads == 0 or heads % kv_heads:
        return f"{heads} query heads are no multiple of {kv_heads} key heads"
    for name, dim in dims.items():
        if not 16 <= dim <= 256:
            return f"{name} has heads of size {dim}; 16 to 256 are supported"
    return None


def last_axis_fault(tensors: Mapping[str, TensorSpec], names: Sequence[str]) -> str | None:
    """The last axis is read in whole vectors."""
    for name in names:
        if name in tensors and tensors[name].shape[-1] > 1 and tensors[name].stride[-1] != 1:
            return f"the last axis of {name} has stride {tensors[name].stride[-1]}; it must be 1"
    return None


def split_dim(dim: int) -> tuple[int, int]:
    """A head size as a power of two and a padded rest: 128 → 128, 0; 96 → 64, 32; 80 → 64, 16."""
    main = next_power_of_2(dim + 1) // 2
    return main, max(16, next_power_of_2(dim - main)) if dim > main else 0


class FlashAttention:
    """Tiles of query rows over all keys they see; short queries share a tile with their group."""

    name = "flash_attention.triton.tiled"

    def supports(self, problem: Problem, target: Target) -> str | None:
        q, k, v = problem["q"], problem["k"], problem["v"]
        if q.dtype not in _FLOATS or k.dtype != q.dtype or v.dtype != q.dtype:
            return f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; they must be one of {_FLOATS}"
        for name in ("cu_seqlens_q", "cu_seqlens_k"):
            if problem[name].dtype != "int32" or not problem[name].contiguous:
                return f"{name} is {problem[name].dtype}; it must be contiguous int32"
        if k.shape[:2] != v.shape[:2] or q.shape[2] != k.shape[2]:
            return f"q {q.shape}, k {k.shape} and v {v.shape} do not fit together"
        if problem["cu_seqlens_q"].shape != problem["cu_seqlens_k"].shape:
            return "cu_seqlens_q and cu_seqlens_k name different numbers of sequences"
        dims = {"q": q.shape[2], "v": v.shape[2]}
        return (
            heads_fault(q.shape[1], k.shape[1], dims)
            or last_axis_fault(problem.tensors, ("q", "k", "v", "out", "lse"))
            or attrs_fault(problem.attrs)
        )

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        tokens, heads, dim = problem["q"].shape
        group = heads // problem["k"].shape[1]
        widest = max(sum(split_dim(dim)), next_power_of_2(problem["v"].shape[2]))
        sequences = max(problem["cu_seqlens_q"].shape[0] - 1, 1)
        rows = cdiv(tokens, sequences)
        long = fitting(target, long_tiles(target, widest), dim, problem["v"].shape[2])
        if group == 1 or rows >= 128:
            return long
        packed: list[Config] = [
            {**tile, "PACK": group}
            for tile in short_tiles(target, widest)
            if tile["BLOCK_M"] >= group and tile["BLOCK_M"] < max(32, 2 * rows * group)
        ]
        return packed + long if rows * group <= 64 else long + packed

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        attrs, tensors = problem.attrs, problem.tensors
        q, k, v, out = (problem[name] for name in ("q", "k", "v", "out"))
        tokens, heads, dim = q.shape
        dim_v = v.shape[2]
        kv_heads = k.shape[1]
        group = heads // kv_heads
        sequences = problem["cu_seqlens_q"].shape[0] - 1
        if tokens == 0 or sequences == 0:
            return Plan(())
        pack = config["PACK"]
        tiles = tokens // (config["BLOCK_M"] // pack) + sequences
        scale, cap = logit_scales(attrs, dim)
        left, right = attrs.get("window_left", -1), attrs.get("window_right", -1)
        right = 0 if attrs.get("causal") else right
        main, rest = split_dim(dim)
        block_v = min(config["BLOCK_V"], next_power_of_2(dim_v))
        parts = cdiv(dim_v, block_v)
        pointers = {name: name for name in ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "out")}
        optional = {name: name for name in ("sinks", "lse") if name in tensors}
        launch = Launch(
            kernel=_kernel(),
            grid=(tiles * kv_heads * (group // pack) * parts, 1, 1),
            arguments={
                **pointers,
                **optional,
                **tensor_strides(q, "q"), **tensor_strides(k, "k"),
                **tensor_strides(v, "v"), **tensor_strides(out, "o"),
                "stride_lh": tensors["lse"].stride[0] if "lse" in tensors else tokens,
                "sequences": sequences,
                "tiles": tiles,
                "kv_heads": kv_heads,
                "group": group,
                "scale": scale,
                "cap": cap,
                "left": max(left, 0),
                "right": max(right, 0),
            },
            constants={
                **{name: None for name in ("sinks", "lse") if name not in tensors},
                "D": dim,
                "DV": dim_v,
                "BLOCK_M": config["BLOCK_M"],
                "BLOCK_N": config["BLOCK_N"],
                "BLOCK_D": main,
                "BLOCK_R": rest,
                "BLOCK_V": block_v,
                "PARTS": parts,
                "BLOCK_S": sequences_at_once(sequences),
                "PACK": pack,
                "WINDOW": left >= 0,
                "BOUNDED": right >= 0,
                "CAP": cap > 0,
            },
            num_warps=config["warps"],
            num_stages=config["stages"],
            options=rocm_options(target, config["waves"]),
        )  # fmt: skip
        return Plan((launch,))


def _kernel() -> Any:
    from pumice.operators.flash_attention.kernel_triton import flash_attention

    return flash_attention


def tensor_strides(tensor: TensorSpec, letter: str) -> dict[str, int]:
    """A tensor's steps from token to token and from head to head, as the kernels name them."""
    return {f"stride_{letter}t": tensor.stride[0], f"stride_{letter}h": tensor.stride[1]}


def sequences_at_once(sequences: int) -> int:
    """BLOCK_S of `find_sequence`: few values, so that few binaries serve all batches."""
    return 32 if sequences <= 32 else 512 if sequences <= 512 else 0


def fitting(target: Target, tiles: Sequence[Config], dim: int, dim_v: int) -> list[Config]:
    """Tiles whose q and pipelined keys and values fit a wgmma target's shared memory."""
    if target.matrix_unit != "wgmma":
        return list(tiles)
    rows, values = sum(split_dim(dim)), next_power_of_2(dim_v)
    return [
        tile
        for tile in tiles
        if 2 * (tile["BLOCK_M"] * rows + tile["stages"] * tile["BLOCK_N"] * (rows + values))
        <= target.shared_bytes - 2048
    ]


def rocm_options(target: Target, waves: int) -> dict[str, Any]:
    """Compiler options of attention kernels on AMD GPUs."""
    options: dict[str, Any] = {"waves_per_eu": waves} if waves else {}
    if target.matrix_unit == "wmma":
        # Values are read from shared memory in halves: hoisting all those reads would spill.
        options["schedule_hint"] = "attention"
    return {"rocm": options} if options else {}


def doubled_operands(target: Target) -> bool:
    """Whether matrix operands are held twice in registers, as the first WMMA (RDNA3) does; the
    second one, which multiplies 8-bit floats, does not."""
    return target.matrix_unit == "wmma" and "float8_e4m3fn" not in target.dtypes


def _config(m: int, n: int, warps: int, stages: int, waves: int = 0, v: int = 256) -> Config:
    return {
        "BLOCK_M": m, "BLOCK_N": n, "BLOCK_V": v, "warps": warps, "stages": stages, "waves": waves,
        "PACK": 1,
    }  # fmt: skip


_Tile = tuple[int, ...]  # BLOCK_M, BLOCK_N, warps, stages, waves per EU, BLOCK_V


def long_tiles(target: Target, width: int) -> list[Config]:
    """Tiles for many queries, by the matrix unit and the widest of the heads' sizes."""
    return [_config(*row) for row in _long(target, width)]


def short_tiles(target: Target, width: int) -> list[Config]:
    """Tiles for few queries of many heads a group: bandwidth decides."""
    return [_config(*row) for row in _short(target, width)]


def _long(target: Target, width: int) -> list[_Tile]:
    unit = target.matrix_unit
    if unit in ("wgmma", "tcgen05"):
        # A tile of one warpgroup leaves room for a second program on the multiprocessor, whose
        # products run while the first computes exponentials: measured best under causal masks, if
        # loads are two tiles ahead.
        if width <= 64:
            return [(128, 64, 8, 4), (64, 64, 4, 4), (128, 64, 8, 3), (64, 128, 4, 3),
                    (128, 64, 4, 3), (64, 64, 4, 5)]  # fmt: skip
        if width <= 128:
            return [(64, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 3), (128, 64, 8, 4),
                    (128, 128, 8, 2), (64, 32, 4, 4), (64, 32, 4, 3)]  # fmt: skip
        return [(128, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3),
                (64, 32, 4, 4), (128, 32, 8, 4)]  # fmt: skip
    if unit == "mma":
        if width <= 128:
            stages = 3 if target.shared_bytes > 100 << 10 else 2
            return [(128, 64, 8, 2), (128, 32, 8, stages), (64, 64, 8, stages), (64, 32, 4, 2)]
        return [(64, 32, 8, 2), (64, 64, 8, 1), (32, 32, 4, 2)]
    if unit == "mfma":
        if width <= 64:
            return [(128, 64, 4, 1, 2), (256, 64, 8, 1, 2), (128, 128, 4, 1, 2), (64, 64, 4, 1, 2)]
        if width <= 128:
            return [(128, 64, 8, 1, 2), (128, 64, 4, 1, 2), (128, 32, 4, 1, 2), (64, 64, 4, 1, 2)]
        return [(128, 32, 4, 1), (64, 64, 4, 1), (64, 32, 4, 1)]
    if width <= 64:
        return [(128, 32, 8, 1), (64, 32, 4, 1), (64, 16, 4, 1)]
    if doubled_operands(target):
        # A wave's 16 rows of q alone take one register a column of a head: slices of the values
        # leave room for them up to 128 columns; wider heads still spill some.
        narrow: list[_Tile] = [(128, 16, 8, 1, 0, 64), (64, 16, 4, 1, 0, 64)]
        if width > 128:
            return narrow
        # Whole values need Triton 3.6's scheduling hint, which later versions do not know.
        return [(128, 16, 8, 1, 0, 256), (64, 16, 4, 1, 0, 256), *narrow]
    if width <= 128:
        return [(128, 32, 8, 1), (64, 32, 4, 1), (128, 16, 8, 1)]
    return [(64, 16, 8, 1), (32, 16, 4, 1)]


def _short(target: Target, width: int) -> list[_Tile]:
    unit = target.matrix_unit
    if unit in ("wgmma", "tcgen05", "mma"):
        stages = 2 if width > 128 or target.shared_bytes < 128 << 10 else 3
        n = 64 if width <= 128 else 32
        return [(m, n, 4, stages) for m in (16, 32, 64)]
    if unit == "mfma":
        if width <= 128:
            return [(16, 64, 4, 1), (32, 64, 4, 1), (64, 64, 4, 1, 2)]
        return [(16, 32, 4, 1), (32, 32, 4, 1), (64, 32, 4, 1)]
    v = 64 if width > 128 and doubled_operands(target) else 256
    return [(16, 16, 4, 1, 0, v), (32, 16, 4, 1, 0, v), (64, 16, 4 if width <= 128 else 8, 1, 0, v)]
