"""The plan of attention of chunks over a paged cache on Hopper's warp groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.flash_attention.hopper_plan import hopper_fault, hopper_plan, hopper_tiles
from pumice.operators.flash_attention.triton_plan import tensor_strides
from pumice.operators.paged_prefill.triton_plan import PagedPrefill
from pumice.operators.triton.plan import Config, Plan, Problem, cdiv
from pumice.targets import Target

_BLOCKS = 1 << 30  # of a cache, at most: plans know its strides and not its size


class PagedPrefillHopper:
    """Flash attention's kernel for Hopper, whose copies look blocks up; a cache of q's type."""

    name = "paged_prefill.triton.hopper"

    def supports(self, problem: Problem, target: Target) -> str | None:
        against = PagedPrefill().supports(problem, target)
        if against is not None:
            return against
        q, k, v = problem["q"], problem["k_cache"], problem["v_cache"]
        if k.dtype != q.dtype:
            return (
                f"the cache is {k.dtype}; this kernel multiplies it as it is: it must be {q.dtype}"
            )
        if "k_scale" in problem or "v_scale" in problem:
            return "the cache has scales; this kernel multiplies it as it is"
        page = k.shape[1]
        if page < 8 or page & (page - 1):
            return (
                f"the cache has blocks of {page} tokens; the copy engine fills shared memory by "
                "powers of two from 8 on"
            )
        rows = cdiv(q.shape[0], max(problem["context_len"].shape[0], 1))
        dims = k.shape[3], v.shape[3]
        return hopper_fault(target, {"q": q, "k_cache": k, "v_cache": v}, rows, dims)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        return hopper_tiles(target, problem["k_cache"].shape[3], problem["v_cache"].shape[3])

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        q, k, v = problem["q"], problem["k_cache"], problem["v_cache"]
        sequences = problem["context_len"].shape[0]
        if q.shape[0] == 0 or sequences == 0:
            return Plan(())
        arguments: dict[str, str | int | float] = {
            "q": "q", "k": "k_cache", "v": "v_cache", "table": "block_table",
            "cu_seqlens_q": "query_start", "cu_seqlens_k": "context_len", "out": "out",
            **tensor_strides(problem["out"], "o"),
            "stride_kb": k.stride[0], "stride_kt": k.stride[1], "stride_kh": k.stride[2],
            "stride_vb": v.stride[0], "stride_vt": v.stride[1], "stride_vh": v.stride[2],
            "stride_table": problem["block_table"].stride[0],
        }  # fmt: skip
        constants: dict[str, Any] = {"lse": None, "stride_lh": 0, "PAGE": k.shape[1]}
        if "sinks" in problem:
            arguments["sinks"] = "sinks"
        else:
            constants["sinks"] = None
        attrs = {**problem.attrs, "causal": True}
        group = q.shape[1] // k.shape[2]
        sizes = (_BLOCKS, v.shape[3], sequences)
        return hopper_plan(target, config, q, group, sizes, attrs, arguments, constants)
