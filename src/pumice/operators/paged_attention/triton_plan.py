"""Plans of attention over a paged cache: tiles, shares of the keys, the reduction's launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.dtypes import itemsize
from pumice.operators.flash_attention.triton_plan import (
    attrs_fault,
    doubled_operands,
    heads_fault,
    last_axis_fault,
    logit_scales,
    rocm_options,
    sequences_at_once,
    split_dim,
)
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

_FLOATS = ("float16", "bfloat16")
_FP8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2")
MOST_SPLITS = 64
_FEW_ROWS = 128  # of outputs
_LEAST_KEYS = 128  # of a share; fewer do not pay for the second launch


def paged_fault(problem: Problem, target: Target) -> str | None:
    """Why attention over this cache is not supported, for a person. 8-bit caches are widened to
    q's type in the kernel, so that AMD GPUs without that type can read them, too."""
    q, k, v = problem["q"], problem["k_cache"], problem["v_cache"]
    if q.dtype not in _FLOATS:
        return f"q is {q.dtype}; it must be one of {_FLOATS}"
    if k.dtype != v.dtype or k.dtype not in (q.dtype, *_FP8):
        return f"the cache is {k.dtype} and {v.dtype}; both must be {q.dtype} or one of {_FP8}"
    if k.dtype in _FP8 and target.api == "cuda" and k.dtype not in target.dtypes:
        return f"{target.name} has no {k.dtype}"
    if k.shape[:3] != v.shape[:3] or q.shape[2] != k.shape[3]:
        return f"q {q.shape}, k_cache {k.shape} and v_cache {v.shape} do not fit together"
    for name in ("context_len", "query_start", "block_table"):
        if name in problem and problem[name].dtype != "int32":
            return f"{name} is {problem[name].dtype}; it must be int32"
        if name in problem and problem[name].shape[-1] > 1 and problem[name].stride[-1] != 1:
            return f"the last axis of {name} has stride {problem[name].stride[-1]}; it must be 1"
    for name in ("k_scale", "v_scale"):
        if name in problem and (
            problem[name].dtype != "float32" or problem[name].elements not in (1, k.shape[2])
        ):
            return (
                f"{name} is {problem[name].dtype}{list(problem[name].shape)}; it must be float32, "
                f"one value or one for each of {k.shape[2]} key heads"
            )
    heads, kv_heads = q.shape[1], k.shape[2]
    if kv_heads and heads // kv_heads > 128:
        return f"{heads // kv_heads} query heads share a key head; 128 is the most"
    return (
        heads_fault(heads, kv_heads, {"q": q.shape[2], "v_cache": v.shape[3]})
        or last_axis_fault(problem.tensors, ("q", "k_cache", "v_cache", "out"))
        or attrs_fault(problem.attrs)
    )


def most_keys(problem: Problem) -> int:
    """Keys of the longest context that the block table's width allows."""
    keys = problem["block_table"].shape[1] * problem["k_cache"].shape[1]
    left = problem.attrs.get("window_left", -1)
    return min(keys, left + 1) if left >= 0 else keys


def width_of(problem: Problem) -> int:
    """The wider of the padded head sizes."""
    return max(sum(split_dim(problem["q"].shape[2])), next_power_of_2(problem["v_cache"].shape[3]))


def split_counts(problem: Problem, target: Target, programs: int) -> list[int]:
    """Numbers of shares worth trying, the favourite first: enough programs to keep every compute
    unit busy with a few, no share too short."""
    units = max(target.compute_units, 1)
    most = min(MOST_SPLITS, max(1, cdiv(most_keys(problem), _LEAST_KEYS)))
    wanted = min(most, next_power_of_2(cdiv(7 * units // 2, max(programs, 1))))
    counts = [wanted, wanted * 2, wanted // 2, wanted * 4, 1]
    found: list[int] = []
    for count in counts:
        if 1 <= count <= most and count not in found:
            found.append(count)
    return found


def paged_plan(problem: Problem, target: Target, config: Config) -> Plan:
    """One launch, and one that combines the shares if there are several."""
    attrs, tensors = problem.attrs, problem.tensors
    q, k, v, out = (problem[name] for name in ("q", "k_cache", "v_cache", "out"))
    tokens, heads, dim = q.shape
    _, page, kv_heads, dim_v = v.shape
    group = heads // kv_heads
    sequences, splits = problem["context_len"].shape[0], config["SPLITS"]
    if tokens == 0 or sequences == 0:
        return Plan(())
    ragged = "query_start" in tensors
    spare = bool(config.get("SPARE"))
    tiles = tokens // (config["BLOCK_M"] // group) + sequences if ragged else sequences
    scale, cap = logit_scales(attrs, dim)
    left = attrs.get("window_left", -1)
    main, rest = split_dim(dim)
    block_v = min(config["BLOCK_V"], next_power_of_2(dim_v))
    parts = cdiv(dim_v, block_v)
    given = ("q", "k_cache", "v_cache", "block_table", "context_len")
    optional = ("query_start", "k_scale", "v_scale", "sinks")
    partial = TensorSpec((tokens, heads, splits, dim_v), "float32")
    lse = TensorSpec((tokens, heads, splits), "float32")
    constants: dict[str, Any] = {name: None for name in optional if name not in tensors}
    arguments: dict[str, Any] = {name: name for name in (*given, *optional) if name in tensors}
    if splits > 1:
        arguments |= {
            "out": "partial", "stride_ot": partial.stride[0], "stride_oh": partial.stride[1],
            "stride_os": dim_v, "lse": "lse", "stride_lt": lse.stride[0], "stride_lh": splits,
        }  # fmt: skip
    else:
        arguments |= {
            "out": "out", "stride_ot": out.stride[0], "stride_oh": out.stride[1], "stride_os": 0,
            "stride_lt": 0, "stride_lh": 0,
        }  # fmt: skip
        constants["lse"] = None
    launch = Launch(
        kernel=_kernel("paged_attention"),
        grid=(tiles * (1 if spare else splits) * kv_heads * parts, 1, 1),
        arguments={
            **arguments,
            "stride_qt": q.stride[0], "stride_qh": q.stride[1],
            "stride_kb": k.stride[0], "stride_kn": k.stride[1], "stride_kh": k.stride[2],
            "stride_vb": v.stride[0], "stride_vn": v.stride[1], "stride_vh": v.stride[2],
            "stride_table": problem["block_table"].stride[0],
            "stride_k_scale": _step(problem, "k_scale"),
            "stride_v_scale": _step(problem, "v_scale"),
            "sequences": sequences, "tiles": tiles, "kv_heads": kv_heads, "splits": splits,
            "scale": scale, "cap": cap, "left": max(left, 0),
        },
        constants={
            **constants,
            "GROUP": group, "D": dim, "DV": dim_v, "PAGE": page, "PARTS": parts,
            "BLOCK_M": config["BLOCK_M"], "BLOCK_N": config["BLOCK_N"],
            "BLOCK_D": main, "BLOCK_R": rest, "BLOCK_V": block_v,
            "BLOCK_S": sequences_at_once(sequences) if ragged else 0,
            "SPARE": spare, "WINDOW": left >= 0, "CAP": cap > 0,
            "BITWISE": bitwise(k.dtype, target),
        },
        num_warps=config["warps"],
        num_stages=config["stages"],
        options=rocm_options(target, config["waves"]),
    )  # fmt: skip
    if splits == 1:
        return Plan((launch,))
    combine = combine_launch(out, splits)
    return Plan((launch, combine), {"partial": partial, "lse": lse})


def combine_launch(out: TensorSpec, splits: int, early: bool = False) -> Launch:
    """The workspaces "partial" [T, H, splits, Dv] and "lse" [T, H, splits] into "out". early: its
    programs come to their places while the launch in front of it ends."""
    tokens, heads, dim = out.shape
    shares, width = next_power_of_2(splits), next_power_of_2(dim)
    # Few rows of many shares would leave most of a GPU idle.
    while tokens * heads * cdiv(dim, width) < _FEW_ROWS and shares * width > 8192 and width > 64:
        width //= 2
    size = shares * width
    return Launch(
        kernel=_kernel("combine_splits"),
        grid=(tokens * heads, cdiv(dim, width), 1),
        arguments={
            "partial": "partial", "lse": "lse", "out": "out",
            "stride_ot": out.stride[0], "stride_oh": out.stride[1],
            "heads": heads, "splits": splits,
        },
        constants={
            "DV": dim, "BLOCK_S": shares, "BLOCK_V": width,
            "EARLY": early,
        },
        num_warps=1 if size <= 2048 else 4 if size <= 8192 else 8,
        options={"cuda": {"launch_pdl": True}} if early else {},
    )  # fmt: skip


def _kernel(name: str) -> Any:
    from pumice.operators.paged_attention import kernel_triton

    return getattr(kernel_triton, name)


def _step(problem: Problem, name: str) -> int:
    """From one key head's scale to the next: 0 where one scale serves all."""
    return int(name in problem and problem[name].elements > 1)


def paged_config(
    m: int, n: int, warps: int, stages: int, splits: int = 1, waves: int = 0, v: int = 256
) -> Config:
    return {
        "BLOCK_M": m, "BLOCK_N": n, "BLOCK_V": v, "warps": warps, "stages": stages,
        "SPLITS": splits, "waves": waves,
    }  # fmt: skip


def decode_tiles(target: Target, width: int, size: int) -> list[tuple[int, int, int]]:
    """(BLOCK_N, warps, stages) for cache elements of `size` bytes, the favourite first: bytes in
    flight decide."""
    unit = target.matrix_unit
    if unit in ("wgmma", "tcgen05", "mma"):
        large = target.shared_bytes > 128 << 10
        if width <= 64:
            return [(128, 4, 3 if large else 2), (64, 4, 4 if large else 3), (64, 2, 3)]
        if width <= 128:
            if not large:
                return [(64, 4, 2), (32, 4, 3), (32, 2, 3)]
            if size == 1:
                return [(64, 4, 3), (128, 4, 3), (128, 4, 2), (64, 4, 4), (128, 8, 3)]
            return [(64, 4, 3), (64, 4, 2), (128, 4, 2), (32, 4, 4), (64, 8, 3), (32, 2, 3)]
        return [(32, 4, 3 if large else 2), (64, 4, 2) if large else (16, 4, 3), (32, 8, 2)]
    if unit == "mfma":
        if width <= 128:
            return [(64, 4, 1), (128, 4, 1), (64, 2, 1), (32, 4, 2)]
        return [(32, 4, 1), (64, 4, 1), (32, 4, 2)]
    if width <= 64:
        return [(64, 4, 1), (32, 4, 1), (32, 2, 1)]
    if width <= 128:
        return [(32, 4, 1), (16, 4, 1), (64, 8, 1)]
    return [(16, 4, 1), (32, 8, 1)]


class PagedAttention:
    """One query a sequence; the heads that share a key head are rows of one matrix product."""

    name = "paged_attention.triton.split"

    def supports(self, problem: Problem, target: Target) -> str | None:
        sequences = problem["context_len"].shape[0]
        if problem["q"].shape[0] != sequences or problem["block_table"].shape[0] != sequences:
            return (
                f"q has {problem['q'].shape[0]} rows, block_table {problem['block_table'].shape[0]}"
                f", context_len {sequences}; each sequence has one of each"
            )
        return paged_fault(problem, target)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        heads, kv_heads = problem["q"].shape[1], problem["k_cache"].shape[2]
        m = max(16, next_power_of_2(heads // kv_heads))
        width = width_of(problem)
        v = 64 if width > 128 and doubled_operands(target) else 256
        programs = max(problem["q"].shape[0], 1) * kv_heads
        counts = split_counts(problem, target, programs)
        tiles = decode_tiles(target, width, itemsize(problem["k_cache"].dtype))
        rows = [(tiles[0], count) for count in counts]
        rows += [(tile, count) for tile in tiles[1:] for count in dict.fromkeys((*counts[:2], 1))]
        return [paged_config(m, *tile, splits=count, v=v) for tile, count in rows]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        return paged_plan(problem, target, config)
