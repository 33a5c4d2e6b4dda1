"""AITER's mixture of experts."""

from __future__ import annotations

from typing import Any

import torch

from pumice.bench.operators.aiter.module import Peer, Tensors, function
from pumice.operators.gemm_fp8_block.spec import GROUP
from pumice.operators.moe_gemm.align import most_blocks
from pumice.operators.triton.plan import Problem

_DTYPES = ("bfloat16", "float16", "float8_e4m3fn", "float8_e4m3fnuz")


def moe_gemm(problem: Problem) -> Peer | None:
    """All that the operator does: entries sorted by expert, gate and up with silu, the values
    between quantized where x is, down, and the sum over a token's experts, for which AITER has no
    kernel (PyTorch's)."""
    import triton.language as tl

    if problem.attrs.get("activation", "silu") != "silu" or problem["x"].dtype not in _DTYPES:
        return None
    sort = function("moe_align_block_size", "moe_align_block_size_triton")
    up = function("moe_op_silu_fused", "fused_moe_silu")
    down = function("moe_op", "fused_moe")
    best = function("utils.moe_config_utils", "get_optimal_moe_config")
    tokens, top = problem["ids"].shape
    experts, entries, eight = problem["w1"].shape[0], tokens * top, "x_scale" in problem
    quantize = function("fused_fp8_quant", "fused_flatten_fp8_group_quant") if eight else None
    config = dict(best(getattr(torch, problem["x"].dtype), use_fp8_w8a8=eight, M=tokens))
    rows = config["BLOCK_SIZE_M"]
    blocks = most_blocks(entries, experts, rows)
    between = getattr(torch, problem["out"].dtype)
    compute = getattr(tl, problem["out"].dtype)
    shape = [GROUP, GROUP] if eight else None

    def run(t: Tensors) -> torch.Tensor:
        x, ids, weights = t["x"], t["ids"], t["weights"]
        order = torch.full((blocks * rows,), entries, dtype=torch.int32, device=x.device)
        owners = torch.empty(blocks, dtype=torch.int32, device=x.device)
        used = torch.empty(1, dtype=torch.int32, device=x.device)
        sort(ids, experts, rows, order, owners, used)

        def multiply(
            product: Any, a: Any, w: str, out: Any, scale: Any, *, weigh: bool, top: int
        ) -> None:
            product(
                a, t[w], out, scale, t.get(f"{w}_scale"), None, weights, ids, order, owners, used,
                weigh, top, compute, eight, False, False, shape, config,
            )  # fmt: skip

        h = torch.empty(entries, t["w2"].shape[2], dtype=between, device=x.device)
        multiply(up, x, "w1", h, t.get("x_scale"), weigh=False, top=top)
        scale = None
        if quantize is not None:
            h, scale = quantize(h.unsqueeze(1), GROUP, x.dtype)
        y = torch.empty(tokens, top, x.shape[1], dtype=between, device=x.device)
        multiply(down, h, "w2", y, scale, weigh=True, top=1)
        return torch.sum(y, 1)

    return run
