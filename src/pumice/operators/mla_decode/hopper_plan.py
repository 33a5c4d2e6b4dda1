"""The plan of decode attention over a latent cache on Hopper's warp groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.mla_decode.triton_plan import MlaDecode, share_counts, shared_arguments
from pumice.operators.paged_attention.triton_plan import combine_launch
from pumice.operators.triton.plan import (
    Config,
    Launch,
    Plan,
    Problem,
    TensorSpec,
    begins_early,
    cdiv,
)
from pumice.targets import Target

_ROWS = 64  # heads of a program: what a warp group's matrix instruction takes
_KEYS = 64  # at a time
_ROPE = 64  # columns of a row behind the latent's
_REGISTERS = 168  # of a thread that accumulates; those of the copying warp have 24
_SHARE = 128  # registers of a thread when all have as many; groups of warps trade theirs
_DESCRIPTOR = 128  # bytes: of the cache, which every program makes for itself
_BLOCKS = 1 << 30  # of a cache, at most: plans know its strides and not its size


class MlaDecodeHopper:
    """A warp group of logits, two of outputs, a warp that copies."""

    name = "mla_decode.triton.hopper"

    def supports(self, problem: Problem, target: Target) -> str | None:
        if target.matrix_unit != "wgmma":
            return f"{target.name} has no asynchronous matrix products of warp groups (sm_90 has)"
        against = MlaDecode().supports(problem, target)
        if against is not None:
            return against
        q, cache = problem["q"], problem["k_cache"]
        dim, dim_v = q.shape[2], problem["out"].shape[2]
        if dim_v not in (256, 512) or dim - dim_v != _ROPE:
            return (
                f"rows of {dim} columns hold {dim_v} of a latent; this kernel has latents of 256 "
                f"and 512, and {_ROPE} columns more"
            )
        page = cache.shape[1]
        if page < 8 or page & (page - 1):
            return (
                f"the cache has blocks of {page} tokens; the copy engine fills shared memory by "
                "powers of two from 8 on"
            )
        for name, tensor in (("q", q), ("k_cache", cache)):
            if not tensor.aligned or any(stride % 8 for stride in tensor.stride[:-1]):
                return (
                    f"{name} (strides {tensor.stride}) is copied 16 bytes at a time: its address "
                    "and its steps must be multiples of that"
                )
        return None

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        counts = share_counts(problem, target, _ROWS, _KEYS)
        return [{"SPLITS": count} for count in counts]

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        q, cache, out = problem["q"], problem["k_cache"], problem["out"]
        sequences, heads, _ = q.shape
        if sequences == 0:
            return Plan(())
        splits, head_blocks = config["SPLITS"], cdiv(heads, _ROWS)
        arguments, constants, workspaces = shared_arguments(problem, splits, head_blocks)
        grid = sequences * splits * head_blocks
        launch = Launch(
            kernel=_kernel(),
            grid=(grid, 1, 1),
            arguments={**arguments, "cache_blocks": _BLOCKS},
            constants={
                **constants,
                "DV": out.shape[2], "PAGE": cache.shape[1], "BLOCK_N": _KEYS,
                "REGISTERS": _REGISTERS,
            },
            num_warps=4,  # of a part that computes
            num_stages=1,
            options={"cuda": {"maxnreg": _SHARE}},
            scratch="descriptors",
        )  # fmt: skip
        workspaces |= {"descriptors": TensorSpec((grid, _DESCRIPTOR), "int8")}
        if splits == 1:
            return Plan((launch,), workspaces)
        return Plan((launch, combine_launch(out, splits, begins_early(target))), workspaces)


def _kernel() -> Any:
    from pumice.operators.mla_decode.hopper_triton import mla_decode_hopper

    return mla_decode_hopper
