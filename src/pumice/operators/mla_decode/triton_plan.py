"""The plan of decode attention over a latent cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumice.operators.flash_attention.triton_plan import (
    LOG2_E,
    attrs_fault,
    last_axis_fault,
    rocm_options,
)
from pumice.operators.mla_decode.spec import VALUE_DIM
from pumice.operators.paged_attention.triton_plan import combine_launch
from pumice.operators.triton.plan import (
    Config,
    Launch,
    Plan,
    Problem,
    TensorSpec,
    begins_early,
    cdiv,
    next_power_of_2,
)
from pumice.targets import Target

_FLOATS = ("float16", "bfloat16")
_MOST_SPLITS = 128


class MlaDecode:
    """Blocks of heads times shares of the keys; each latent is read once for both products."""

    name = "mla_decode.triton.split"

    def supports(self, problem: Problem, target: Target) -> str | None:
        q, cache = problem["q"], problem["k_cache"]
        dim, dim_v = q.shape[2], problem.attrs.get("value_dim", VALUE_DIM)
        if q.dtype not in _FLOATS or cache.dtype != q.dtype:
            return f"q and k_cache are {q.dtype} and {cache.dtype}; they must be one of {_FLOATS}"
        if len(cache.shape) != 3 or cache.shape[2] != dim:
            return f"k_cache is {cache.shape}; it must be [blocks, block_size, {dim}] as q says"
        if dim_v not in (64, 128, 256, 512) or not 0 < dim - dim_v <= 128:
            return (
                f"rows of {dim} columns hold {dim_v} of a latent; it must be 64, 128, 256 or 512, "
                "and up to 128 columns more"
            )
        for name in ("context_len", "block_table"):
            if problem[name].dtype != "int32":
                return f"{name} is {problem[name].dtype}; it must be int32"
            if problem[name].shape[0] != q.shape[0]:
                return f"{name} has {problem[name].shape[0]} rows, q has {q.shape[0]}"
        if dim > 256 and target.matrix_unit == "wmma":
            return f"rows of {dim} columns do not fit the registers of {target.name}"
        names = ("q", "k_cache", "out", "block_table", "context_len")
        return last_axis_fault(problem.tensors, names) or attrs_fault(problem.attrs)

    def configs(self, problem: Problem, target: Target) -> Sequence[Config]:
        _, heads, dim = problem["q"].shape
        found: list[Config] = []
        for block_h, block_n, warps, stages in _tiles(target, heads, dim):
            counts = share_counts(problem, target, block_h, block_n)
            for count in counts if not found else counts[:2]:
                found.append(
                    {"BLOCK_H": block_h, "BLOCK_N": block_n, "warps": warps, "stages": stages,
                     "SPLITS": count}
                )  # fmt: skip
        return found

    def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
        q, cache, out = problem["q"], problem["k_cache"], problem["out"]
        sequences, heads, dim = q.shape
        if sequences == 0:
            return Plan(())
        splits = config["SPLITS"]
        head_blocks = cdiv(heads, config["BLOCK_H"])
        arguments, constants, workspaces = shared_arguments(problem, splits, head_blocks)
        launch = Launch(
            kernel=_kernel(),
            grid=(sequences * splits * head_blocks, 1, 1),
            arguments=arguments,
            constants={
                **constants,
                "D": dim, "DV": out.shape[2], "PAGE": cache.shape[1],
                "BLOCK_H": config["BLOCK_H"], "BLOCK_N": config["BLOCK_N"],
                "BLOCK_R": max(16, next_power_of_2(dim - out.shape[2])),
            },
            num_warps=config["warps"],
            num_stages=config["stages"],
            options=rocm_options(target, 0),
        )  # fmt: skip
        if splits == 1:
            return Plan((launch,))
        return Plan((launch, combine_launch(out, splits, begins_early(target))), workspaces)


def shared_arguments(
    problem: Problem, splits: int, head_blocks: int
) -> tuple[dict[str, str | int | float], dict[str, Any], dict[str, TensorSpec]]:
    """(arguments, constants, workspaces) of a launch of either kernel."""
    q, cache = problem["q"], problem["k_cache"]
    arguments, constants, workspaces = _partial_arguments(problem["out"], splits)
    arguments |= {
        "q": "q", "cache": "k_cache", "block_table": "block_table", "context_len": "context_len",
        "stride_qs": q.stride[0], "stride_qh": q.stride[1],
        "stride_cb": cache.stride[0], "stride_cn": cache.stride[1],
        "stride_table": problem["block_table"].stride[0],
        "heads": q.shape[1], "head_blocks": head_blocks,
        "scale": float(problem.attrs.get("scale", q.shape[2] ** -0.5)) * LOG2_E,
    }  # fmt: skip
    return arguments, constants, workspaces


def _partial_arguments(
    out: TensorSpec, splits: int
) -> tuple[dict[str, str | int | float], dict[str, Any], dict[str, TensorSpec]]:
    """Where shares of the keys write: (arguments, constants, workspaces) of a launch."""
    sequences, heads, dim_v = out.shape
    if splits == 1:
        whole: dict[str, str | int | float] = {
            "out": "out", "stride_os": out.stride[0], "stride_oh": out.stride[1],
            "stride_split": 0, "stride_ls": 0, "stride_lh": 0, "splits": 1,
        }  # fmt: skip
        return whole, {"lse": None}, {}
    partial = TensorSpec((sequences, heads, splits, dim_v), "float32")
    lse = TensorSpec((sequences, heads, splits), "float32")
    arguments: dict[str, str | int | float] = {
        "out": "partial", "stride_os": partial.stride[0], "stride_oh": partial.stride[1],
        "stride_split": dim_v, "lse": "lse", "stride_ls": lse.stride[0],
        "stride_lh": lse.stride[1], "splits": splits,
    }  # fmt: skip
    return arguments, {}, {"partial": partial, "lse": lse}


def share_counts(problem: Problem, target: Target, rows: int, block_n: int) -> list[int]:
    """Numbers of shares of the keys worth trying: a program of `rows` heads and `block_n` keys at a
    time fills a compute unit's shared memory, so whole rounds of programs."""
    sequences, heads, _ = problem["q"].shape
    keys = problem["block_table"].shape[1] * problem["k_cache"].shape[1]
    programs = max(sequences, 1) * cdiv(heads, rows)
    most = min(_MOST_SPLITS, max(1, cdiv(keys, 2 * block_n)))
    even = max(1, target.compute_units // programs)
    return list(dict.fromkeys(min(most, even * rounds) for rounds in (1, 2, 4)))


def _kernel() -> Any:
    from pumice.operators.mla_decode.kernel_triton import mla_decode

    return mla_decode


def _tiles(target: Target, heads: int, dim: int) -> list[tuple[int, int, int, int]]:
    """(BLOCK_H, BLOCK_N, warps, stages), the favourite first."""
    block = min(64, max(16, next_power_of_2(heads)))
    unit = target.matrix_unit
    if unit == "wgmma":
        # 64 heads in a tile halve the reads of 128 heads, and spill a few registers.
        if block >= 32:
            return [(32, 64, 8, 2), (block, 64, 8, 2), (32, 32, 8, 3), (16, 32, 4, 3)]
        return [(block, 32, 4, 3), (block, 64, 4, 2), (block, 32, 4, 4), (block, 32, 8, 3)]
    if unit in ("mma", "tcgen05"):
        small = unit == "tcgen05" or target.shared_bytes < 128 << 10
        block = min(block, 32)
        return [(block, 32, 8, 2), (block, 16 if small else 64, 8, 2), (16, 32, 4, 2)]
    if unit == "mfma":
        return [(min(block, 32), 32, 4, 1), (16, 32, 8, 1), (16, 32, 4, 1)]
    return [(16, 16, 8, 1), (16, 32, 8, 1)]
