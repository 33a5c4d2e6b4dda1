"""Plans of `held_triton.py`: attention over few keys, which are there before the query is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.decode_attention.triton_plan import _GIVEN, DecodeAttention
from pumice.operators.flash_attention.triton_plan import logit_scales
from pumice.operators.paged_attention.triton_plan import most_keys
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

_MOST_KEYS = 1024
_TILES = ((256, 8), (128, 8), (64, 4))  # keys, warps


class HeldAttention:
    """config: keys of a tile; warps; shares of the keys; programs that share a head's values, by
    columns; whether it begins before the launch in
    front of it has ended (0: no), and when those behind it may (1: with this one, 2: before)."""

    name = "decode_attention.triton.held"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if (reason := DecodeAttention().supports(problem, target)) is not None:
            return reason
        if target.matrix_unit not in ("wgmma", "tcgen05"):
            return f"decode_attention: {target.name} has no launches that begin early"
        q, v, cache = problem["q"], problem["v"], problem["k_cache"]
        dim = q.shape[2]
        if dim != v.shape[2] or dim not in (64, 128, 256):
            return f"decode_attention: heads of {dim} and {v.shape[2]}; 64, 128 or 256 here"
        if cache.dtype != q.dtype or problem["v_cache"].dtype != q.dtype:
            return f"decode_attention: this kernel reads caches of {q.dtype}, not {cache.dtype}"
        if "sinks" in problem or logit_scales(problem.attrs, dim)[1] > 0:
            return "decode_attention: this kernel knows neither sinks nor a cap"
        if problem.attrs.get("window_left", -1) >= 0:
            return "decode_attention: this kernel knows no window"
        if (programs := q.shape[0] * q.shape[1]) > target.compute_units:
            return f"decode_attention: {programs} heads; each wants a compute unit's registers here"
        if most_keys(problem) > _MOST_KEYS:
            return f"decode_attention: {most_keys(problem)} keys; at most {_MOST_KEYS} here"
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        keys = max(most_keys(problem), 1)
        found = []
        for tile, warps in _TILES:
            if problem["q"].shape[2] * tile > 128 * 32 * warps:
                continue
            splits = next_power_of_2(cdiv(keys, tile))
            for count in dict.fromkeys((splits, max(splits // 2, 1), 1)):
                for parts in (1, 2, 4):
                    values = {"BLOCK_N": tile, "warps": warps, "SPLITS": count, "PARTS": parts}
                    found += [{**values, "early": early} for early in (1, 2)]
        return found

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        from pumice.operators.decode_attention.held_triton import held

        attrs, tensors = problem.attrs, problem.tensors
        q, k, v, out = (problem[name] for name in ("q", "k", "v", "out"))
        k_cache, v_cache = problem["k_cache"], problem["v_cache"]
        (sequences, heads, dim), kv_heads = q.shape, k.shape[1]
        splits, warps, parts = config["SPLITS"], config["warps"], config["PARTS"]
        if sequences == 0:
            return Plan(())
        workspaces = {
            "partial": TensorSpec((sequences, heads, splits, dim), "float32"),
            "lse": TensorSpec((sequences, heads, parts, splits), "float32"),
            "counters": TensorSpec((sequences * heads * parts,), "int32"),
        }
        used = list(workspaces) if splits > 1 else []
        names = (*_GIVEN, "q_weight", "k_weight", "out")
        arguments: dict[str, Any] = {name: name for name in names if name in tensors}
        arguments |= {name: name for name in used}
        constants: dict[str, Any] = {name: None for name in names if name not in tensors}
        constants |= {name: None for name in workspaces if name not in used}
        early = int(config["early"])
        launch = Launch(
            kernel=held,
            grid=(sequences * splits * heads * parts, 1, 1),
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
                "stride_ot": out.stride[0], "stride_oh": out.stride[1],
                "heads": heads, "splits": splits,
                "width": problem["block_table"].shape[1], "scale": logit_scales(attrs, dim)[0],
                "eps": float(attrs.get("eps", 1e-6)),
                "offset": float(attrs.get("weight_offset", 0.0)),
                "factor": float(attrs.get("factor", 1.0)),
            },
            constants={
                **constants,
                "GROUP": heads // kv_heads, "D": dim, "HALF": problem["inv_freq"].shape[0],
                "PAGE": k_cache.shape[1], "BLOCK_N": config["BLOCK_N"], "PARTS": parts,
                "AT_ONCE": min(next_power_of_2(splits), max(1, 64 * warps * target.wave // dim)),
                "INTERLEAVED": bool(attrs.get("interleaved")), "EARLY": early,
            },
            num_warps=warps,
            num_stages=1,
            options={"cuda": {"launch_pdl": True}} if early else {},
        )  # fmt: skip
        return Plan(
            (launch,),
            {name: workspaces[name] for name in used},
            zeroed=frozenset({"counters"} & set(used)),
            restored=frozenset({"counters"} & set(used)),
        )
