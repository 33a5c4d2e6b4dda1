"""The plan of decode_attention: tiles, shares of the keys, who combines them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes

from pumice.dtypes import itemsize, numpy_dtype
from pumice.operators.flash_attention.triton_plan import (
    doubled_operands,
    last_axis_fault,
    logit_scales,
    rocm_options,
    split_dim,
)
from pumice.operators.paged_attention.triton_plan import (
    MOST_SPLITS,
    combine_launch,
    decode_tiles,
    most_keys,
    paged_fault,
    width_of,
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

_GIVEN = (
    "q", "k", "v", "positions", "inv_freq", "slots", "k_cache", "v_cache", "block_table",
    "context_len",
)  # fmt: skip
_OPTIONAL = ("q_weight", "k_weight", "k_scale", "v_scale", "sinks")


_LONG = [(128, 8, 2), (256, 8, 1), (128, 8, 1)]  # keys, waves, stages of a tile
_LEAST_KEYS = 32  # of a share: one more costs no launch, only a row of the combination


def share_counts(keys: int, target: Target, programs: int) -> list[int]:
    """Numbers of shares worth trying, the favourite first: about a program for each compute unit,
    more to hide latency, fewer to combine less. programs: those of one share."""
    most = min(MOST_SPLITS, max(1, keys // _LEAST_KEYS))
    most = 1 << (most.bit_length() - 1)
    units = max(target.compute_units // max(programs, 1), 1)
    wanted = min(most, 1 << (units.bit_length() - 1))
    counts = (wanted, wanted * 2, wanted * 4, wanted // 2, 1)
    return list(dict.fromkeys(count for count in counts if 1 <= count <= most))


class DecodeAttention:
    """The heads that share a key head are rows of one matrix product; a program rotates them."""

    name = "decode_attention.triton.split"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if (fault := paged_fault(problem, target)) is not None:
            return fault
        q, k, v = problem["q"], problem["k"], problem["v"]
        sequences = q.shape[0]
        for name in ("k", "v", "positions", "slots", "context_len", "block_table"):
            if problem[name].shape[0] != sequences:
                return f"{name} has {problem[name].shape[0]} rows, q {sequences}"
        if k.dtype != q.dtype or v.dtype != q.dtype:
            return f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; they must be of one type"
        for name, cache in (("k", "k_cache"), ("v", "v_cache")):
            if problem[name].shape[1:] != problem[cache].shape[2:]:
                return f"{cache} is {problem[cache].shape}, its rows {problem[name].shape}"
        for name in ("positions", "slots"):
            if problem[name].dtype != "int32" or not problem[name].contiguous:
                return f"{name} is {problem[name].dtype}; it must be contiguous int32"
        frequencies = problem["inv_freq"]
        if frequencies.dtype != "float32" or not 0 < 2 * frequencies.shape[0] <= q.shape[2]:
            return (
                f"inv_freq is {frequencies.dtype}{list(frequencies.shape)}; it must be float32 "
                f"with at most {q.shape[2] // 2} values"
            )
        if ("q_weight" in problem) != ("k_weight" in problem):
            return "one of q_weight and k_weight is given; both or none must be"
        return last_axis_fault(problem.tensors, ("k", "v", "q_weight", "k_weight"))

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        heads, kv_heads = problem["q"].shape[1], problem["k"].shape[1]
        m = max(16, next_power_of_2(heads // kv_heads))
        width, keys = width_of(problem), most_keys(problem)
        v = 64 if width > 128 and doubled_operands(target) else 256
        counts = share_counts(keys, target, max(problem["q"].shape[0], 1) * kv_heads)
        size = itemsize(problem["k_cache"].dtype)
        tiles = decode_tiles(target, width, size)
        if target.matrix_unit in ("wgmma", "tcgen05") and width <= 128 and size == 2:
            tiles += _LONG  # a short context in one share
        # Short contexts want tiles no longer than a share, so that all programs have some.
        tiles = sorted(tiles, key=lambda tile: tile[0] > max(cdiv(keys, counts[0]), _LEAST_KEYS))
        rows = []
        for index, tile in enumerate(tiles):
            for place, count in enumerate(counts):
                if count > 1 and count * tile[0] >= 2 * keys:
                    continue  # the last half of the shares would be empty
                if index == 0 or place < 2 or count == 1:
                    rows.append((tile, count, 1))
                if index == 0 and place == 0 and count > 1:
                    rows.append((tile, count, 0))
        found = [
            {
                "BLOCK_M": m, "BLOCK_N": n, "BLOCK_V": v, "warps": warps, "stages": stages,
                "SPLITS": count, "COMBINES": combines,
            }
            for (n, warps, stages), count, combines in rows
        ]  # fmt: skip
        if target.matrix_unit in ("wgmma", "tcgen05"):
            # These GPUs can start a launch before the one in front of it has ended.
            # Some ask for their first keys until then.
            early = [{**config, "early": 1} for config in found if config["COMBINES"]]
            found += early + [{**config, "fetch": 1} for config in early]
        return found

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        attrs, tensors = problem.attrs, problem.tensors
        q, k, v, out = (problem[name] for name in ("q", "k", "v", "out"))
        k_cache, v_cache = problem["k_cache"], problem["v_cache"]
        sequences, heads, dim = q.shape
        _, kv_heads, dim_v = v.shape
        group, splits = heads // kv_heads, config["SPLITS"]
        if sequences == 0:
            return Plan(())
        scale, cap = logit_scales(attrs, dim)
        left = attrs.get("window_left", -1)
        main, rest = split_dim(dim)
        block_v = min(config["BLOCK_V"], next_power_of_2(dim_v))
        parts = cdiv(dim_v, block_v)
        wide = itemsize(k_cache.dtype) > 1
        limit = 0.0 if wide else float(ml_dtypes.finfo(numpy_dtype(k_cache.dtype)).max)
        early = bool(config.get("early"))
        combines = splits > 1 and bool(config["COMBINES"])
        workspaces = {
            "partial": TensorSpec((sequences, heads, splits, dim_v), "float32"),
            "lse": TensorSpec((parts, sequences, heads, splits), "float32"),
            "counters": TensorSpec((sequences * kv_heads * parts,), "int32"),
        }
        used = [n for n in workspaces if splits > 1 and (combines or n != "counters")]
        arguments: dict[str, Any] = {n: n for n in (*_GIVEN, *_OPTIONAL) if n in tensors}
        arguments |= {"out": "out", **{name: name for name in used}}
        absent = [name for name in _OPTIONAL if name not in tensors]
        absent += [name for name in workspaces if name not in used]
        block_g = next_power_of_2(group)
        threads = config["warps"] * target.wave
        at_once = min(next_power_of_2(splits), max(1, 64 * threads // (block_g * block_v)))
        launch = Launch(
            kernel=_kernel(),
            grid=(sequences * splits * kv_heads * parts, 1, 1),
            arguments={
                **arguments,
                "stride_qt": q.stride[0], "stride_qh": q.stride[1],
                "stride_kt": k.stride[0], "stride_kh": k.stride[1],
                "stride_vt": v.stride[0], "stride_vh": v.stride[1],
                "stride_kb": k_cache.stride[0], "stride_kn": k_cache.stride[1],
                "stride_kc": k_cache.stride[2],
                "stride_vb": v_cache.stride[0], "stride_vn": v_cache.stride[1],
                "stride_vc": v_cache.stride[2],
                "stride_table": problem["block_table"].stride[0],
                "stride_k_scale": _step(problem, "k_scale"),
                "stride_v_scale": _step(problem, "v_scale"),
                "stride_ot": out.stride[0], "stride_oh": out.stride[1],
                "sequences": sequences, "kv_heads": kv_heads, "splits": splits,
                "scale": scale, "cap": cap, "left": max(left, 0),
                "eps": float(attrs.get("eps", 1e-6)),
                "offset": float(attrs.get("weight_offset", 0.0)),
                "factor": float(attrs.get("factor", 1.0)),
            },
            constants={
                **{name: None for name in absent},
                "GROUP": group, "D": dim, "DV": dim_v, "HALF": problem["inv_freq"].shape[0],
                "PAGE": k_cache.shape[1], "PARTS": parts, "LIMIT": limit,
                "BLOCK_M": config["BLOCK_M"], "BLOCK_N": config["BLOCK_N"],
                "BLOCK_D": main, "BLOCK_R": rest, "BLOCK_V": block_v,
                "BLOCK_G": block_g, "AT_ONCE": at_once,
                # On GPUs with waves of 64 a barrier lets a program's stores be on their way to the
                # second-level cache, so every wave arrives on its own; elsewhere one thread does.
                "ARRIVALS": config["warps"] if target.wave == 64 else 1, "WAVE": target.wave,
                "INTERLEAVED": bool(attrs.get("interleaved")), "WINDOW": left >= 0, "CAP": cap > 0,
                "EARLY": early, "FETCH": bool(config.get("fetch")),
                "BITWISE": bitwise(k_cache.dtype, target),
            },
            num_warps=config["warps"],
            num_stages=config["stages"],
            options={"cuda": {"launch_pdl": True}} if early else rocm_options(target, 0),
        )  # fmt: skip
        return Plan(
            (launch, combine_launch(out, splits)) if splits > 1 and not combines else (launch,),
            {name: workspaces[name] for name in used},
            zeroed=frozenset({"counters"} & set(used)),
            restored=frozenset({"counters"} & set(used)),
        )


def _kernel() -> Any:
    from pumice.operators.decode_attention.kernel_triton import decode_attention

    return decode_attention


def _step(problem: Problem, name: str) -> int:
    """From one key head's scale to the next: 0 where one scale serves all."""
    return int(name in problem and problem[name].elements > 1)
