"""The plan of rope_cache: one launch over tokens and blocks of heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.flash_attention.triton_plan import last_axis_fault
from pumice.operators.triton.float8 import bitwise
from pumice.operators.triton.plan import Config, Launch, Plan, Problem, cdiv, next_power_of_2
from pumice.targets import Target

_FLOATS = ("float16", "bfloat16", "float32")
# Largest finite values: the clamp's, and the sign that a type is one of 8 bits.
_LIMITS = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0}


class RopeCache:
    """Some heads of one token a program."""

    name = "rope_cache.triton.heads"

    def supports(self, problem: Problem, target: Target) -> str | None:
        q, k, v = problem["q"], problem["k"], problem["v"]
        caches = problem["k_cache"], problem["v_cache"]
        if q.dtype not in _FLOATS or k.dtype != q.dtype or v.dtype != q.dtype:
            return f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}; they must be one of {_FLOATS}"
        for cache, rows in zip(caches, (k, v), strict=True):
            if cache.dtype not in (q.dtype, *_LIMITS):
                return f"a cache is {cache.dtype}; it must be {q.dtype} or one of {[*_LIMITS]}"
            if cache.dtype in _LIMITS and target.api == "cuda" and cache.dtype not in target.dtypes:
                return f"{target.name} has no {cache.dtype}"
            if cache.shape[2:] != rows.shape[1:]:
                return f"a cache is {cache.shape}, its rows {rows.shape}"
        if caches[0].dtype != caches[1].dtype or caches[0].shape[:2] != caches[1].shape[:2]:
            return "k_cache and v_cache differ in type, blocks or block size"
        for name in ("positions", "slots"):
            if problem[name].dtype not in ("int32", "int64") or not problem[name].contiguous:
                return f"{name} is {problem[name].dtype}; it must be contiguous int32 or int64"
            if problem[name].shape[0] != q.shape[0]:
                return f"{name} has {problem[name].shape[0]} rows, q has {q.shape[0]}"
        frequencies = problem["inv_freq"]
        if frequencies.dtype != "float32" or not 0 < 2 * frequencies.shape[0] <= q.shape[2]:
            return (
                f"inv_freq is {frequencies.dtype}{list(frequencies.shape)}; it must be float32 "
                f"with at most {q.shape[2] // 2} values"
            )
        if q.shape[2] != k.shape[2]:
            return f"q has heads of size {q.shape[2]}, k of size {k.shape[2]}"
        for name in ("k_scale", "v_scale"):
            if name in problem and (
                problem[name].dtype != "float32" or problem[name].elements not in (1, k.shape[1])
            ):
                return f"{name} must be float32, one value or one for each of {k.shape[1]} heads"
        names = ("q", "k", "v", "k_cache", "v_cache", "q_out", "k_out", "q_weight", "k_weight")
        return last_axis_fault(problem.tensors, names)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        dim = next_power_of_2(problem["q"].shape[2])
        heads = next_power_of_2(problem["q"].shape[1])
        found = []
        for elements, warps in ((1024, 2), (2048, 4), (4096, 4), (1024, 1), (512, 1)):
            row = {"BLOCK_H": max(1, min(elements // dim, heads)), "warps": warps}
            if row not in found:
                found.append(row)
        return found

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        attrs, tensors = problem.attrs, problem.tensors
        tokens, heads, dim = problem["q"].shape
        if tokens == 0:
            return Plan(())
        kv_heads, dim_v = problem["v"].shape[1:]
        half = problem["inv_freq"].shape[0]
        block = config["BLOCK_H"]
        q_blocks, kv_blocks = cdiv(heads, block), cdiv(kv_heads, block)
        given = ("q", "k", "v", "positions", "inv_freq", "slots", "k_cache", "v_cache")
        optional = ("q_weight", "k_weight", "k_scale", "v_scale")
        in_place = bool(attrs.get("in_place"))
        q_out = "q" if in_place else "q_out"
        arguments: dict[str, Any] = {n: n for n in (*given, *optional) if n in tensors}
        constants: dict[str, Any] = {n: None for n in optional if n not in tensors}
        arguments["q_out"] = q_out
        k_out = problem["k"]
        if attrs.get("keep_k"):
            arguments["k_out"] = "k" if in_place else "k_out"
            k_out = problem[arguments["k_out"]]
        else:
            constants["k_out"] = None
        strides = {
            "stride_q": problem["q"].stride, "stride_k": problem["k"].stride,
            "stride_v": problem["v"].stride, "stride_qo": problem[q_out].stride,
            "stride_ko": k_out.stride,
        }  # fmt: skip
        for name, (token, head, _) in strides.items():
            arguments |= {f"{name}t": token, f"{name}h": head}
        for letter in "kv":
            block_step, row, head, _ = problem[f"{letter}_cache"].stride
            arguments |= {
                f"stride_{letter}b": block_step, f"stride_{letter}n": row,
                f"stride_{letter}c": head,
            }  # fmt: skip
            scale = f"{letter}_scale"
            arguments[f"stride_{scale}"] = int(scale in tensors and tensors[scale].elements > 1)
        launch = Launch(
            kernel=_kernel(),
            grid=(tokens, q_blocks + 2 * kv_blocks, 1),
            arguments={
                **arguments,
                "heads": heads, "kv_heads": kv_heads, "q_blocks": q_blocks, "kv_blocks": kv_blocks,
                "eps": float(attrs.get("eps", 1e-6)),
                "offset": float(attrs.get("weight_offset", 0.0)),
                "factor": float(attrs.get("factor", 1.0)),
            },
            constants={
                **constants,
                "HALF": half, "D": dim, "DV": dim_v, "PAGE": problem["k_cache"].shape[1],
                "LIMIT": _LIMITS.get(problem["k_cache"].dtype, 0.0), "BLOCK_H": block,
                "BITWISE": bitwise(problem["k_cache"].dtype, target),
                "BLOCK_P": next_power_of_2(half), "BLOCK_R": next_power_of_2(dim - 2 * half),
                "BLOCK_V": next_power_of_2(dim_v), "INTERLEAVED": bool(attrs.get("interleaved")),
            },
            num_warps=config["warps"],
            num_stages=1,
        )  # fmt: skip
        return Plan((launch,))


def _kernel() -> Any:
    from pumice.operators.rope_cache.kernel_triton import rope_cache

    return rope_cache
