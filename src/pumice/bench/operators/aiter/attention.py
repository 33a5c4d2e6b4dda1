"""AITER's attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pumice.bench.operators.aiter.module import Peer, Prepared, Tensors, function
from pumice.operators.mla_decode.spec import VALUE_DIM
from pumice.operators.triton.plan import Problem, cdiv, next_power_of_2

_SIXTEEN_BITS = ("bfloat16", "float16")


def _scale(problem: Problem) -> float:
    return float(problem.attrs.get("scale", problem["q"].shape[2] ** -0.5))


def flash_attention(problem: Problem) -> Peer | None:
    attrs = problem.attrs
    if attrs.get("softcap") or attrs.get("window_left", -1) != -1 or "sinks" in problem:
        return None
    run = function("mha", "flash_attn_varlen_func")
    steps = problem["cu_seqlens_q"].shape[0] - 1
    longest_q, longest_k = problem["q"].shape[0] // steps, problem["k"].shape[0] // steps
    scale = _scale(problem)
    return lambda t: run(
        t["q"], t["k"], t["v"], t["cu_seqlens_q"], t["cu_seqlens_k"], longest_q, longest_k,
        softmax_scale=scale, causal=bool(attrs.get("causal")),
    )  # fmt: skip


def _unified(problem: Problem) -> Any:
    """attend(t, q, starts, longest): `unified_attention`, whose caches are as the operator's; None
    where it computes something else. starts: of each sequence's queries; longest: of them."""
    scales = [problem[name] for name in ("k_scale", "v_scale") if name in problem]
    if any(scale.elements != 1 for scale in scales):
        return None
    if problem["k_cache"].shape != problem["v_cache"].shape:
        return None
    run = function("unified_attention", "unified_attention")
    block = problem["k_cache"].shape[1]
    most = problem["block_table"].shape[1] * block
    scale, softcap = _scale(problem), float(problem.attrs.get("softcap") or 0.0)
    window = (int(problem.attrs.get("window_left", -1)), 0)
    one = Prepared(lambda t: torch.ones(1, device=t["q"].device))

    def attend(t: Tensors, q: torch.Tensor, starts: torch.Tensor, longest: int) -> torch.Tensor:
        run(
            q, t["k_cache"], t["v_cache"], t["out"], starts, longest, t["context_len"], most, scale,
            True, window, t["block_table"], softcap, None,
            t["k_scale"] if "k_scale" in t else one(t), t["v_scale"] if "v_scale" in t else one(t),
            sinks=t.get("sinks"),
        )  # fmt: skip
        return t["out"]

    return attend


Caches = tuple[torch.Tensor, torch.Tensor]


def _per_head(t: Tensors) -> Caches:
    """The caches with a block's rows of one head side by side, as views."""
    return t["k_cache"].transpose(1, 2), t["v_cache"].transpose(1, 2)


def _decode(problem: Problem, caches: Callable[[Tensors], Caches]) -> Any:
    """attend(t, q) for a query a sequence: the faster of AITER's two kernels. `unified_attention`
    shares a sequence's keys among programs only where there are few sequences; `pa_decode` is
    ahead where there are many, and wants `caches` [blocks, Hk, block_size, D]."""
    unified = _unified(problem)
    if unified is None:
        return None
    starts = Prepared(
        lambda t: torch.arange(t["q"].shape[0] + 1, dtype=torch.int32, device=t["q"].device)
    )

    def few(t: Tensors, q: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = unified(t, q, starts(t), 1)
        return found

    plain = not problem.attrs.get("softcap") and problem.attrs.get("window_left", -1) == -1
    if not plain or "sinks" in problem or problem["k_cache"].dtype != problem["q"].dtype:
        return few
    import triton.language as tl

    many = function("pa_decode", "paged_attention_decode")
    units = function("utils.device_info", "get_num_sms")
    (sequences, heads, _), kv_heads = problem["q"].shape, problem["k_cache"].shape[2]
    group = heads // kv_heads
    programs = (sequences // (max(16, next_power_of_2(group)) // group) + sequences) * kv_heads
    most = problem["block_table"].shape[1] * problem["k_cache"].shape[1]
    scale, compute, one = _scale(problem), getattr(tl, problem["q"].dtype), torch.ones(1)

    def attend(t: Tensors, q: torch.Tensor) -> torch.Tensor:
        if programs <= 4 * units():
            return few(t, q)
        k, v = caches(t)
        many(t["out"], q, k, v, t["context_len"], t["block_table"], scale, most, compute, one, one)
        return t["out"]

    return attend


def paged_attention(problem: Problem) -> Peer | None:
    def reorder(t: Tensors) -> Caches:
        k, v = _per_head(t)
        return k.contiguous(), v.contiguous()

    attend = _decode(problem, Prepared(reorder))
    return None if attend is None else lambda t: attend(t, t["q"])


def paged_prefill(problem: Problem) -> Peer | None:
    attend = _unified(problem)
    if attend is None:
        return None
    longest = Prepared(lambda t: int(t["query_start"].diff().max()))  # its callers know it
    return lambda t: attend(t, t["q"], t["query_start"], longest(t))


def _rotate_and_append(problem: Problem) -> Any:
    """rotate(t) → rotated q, the rotated k and v in the caches: `fused_qk_rope_reshape_and_cache`,
    which reads cosines and sines from a table in q's type, as models keep it for AITER. It writes
    the rotated k a second time. None where it computes something else."""
    attrs = problem.attrs
    if attrs.get("in_place") or "q_weight" in problem:
        return None
    dim, width = problem["q"].shape[2], 2 * problem["inv_freq"].shape[0]
    if dim != width or dim != next_power_of_2(dim) or problem["v"].shape[2] != dim:
        return None
    if any(problem[n].elements != 1 for n in ("k_scale", "v_scale") if n in problem):
        return None
    run = function("fused_kv_cache", "fused_qk_rope_reshape_and_cache")
    neox, factor = not attrs.get("interleaved"), float(attrs.get("factor", 1.0))

    def make(t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
        last = int(t["positions"].max())
        positions = torch.arange(last + 1, dtype=torch.float64, device=t["q"].device)
        angles = torch.outer(positions, t["inv_freq"].double())
        return tuple((f(angles) * factor).to(t["q"].dtype) for f in (torch.cos, torch.sin))  # type: ignore[return-value]

    table = Prepared(make)

    def rotate(t: Tensors) -> torch.Tensor:
        cos, sin = table(t)
        rotated: torch.Tensor = run(
            t["q"], t["k"], t["v"], t["k_cache"], t["v_cache"], t["slots"], t["positions"], cos,
            sin, t.get("k_scale"), t.get("v_scale"), neox, True, q_out=t.get("q_out"),
            k_out=t.get("k_out"), output_zeros=False,
        )[0]  # fmt: skip
        return rotated

    return rotate


def rope_cache(problem: Problem) -> Peer | None:
    rotate: Peer | None = _rotate_and_append(problem)
    return rotate


def decode_attention(problem: Problem) -> Peer | None:
    """In two launches or three: rotation and append, then attention."""
    rotate, attend = _rotate_and_append(problem), _decode(problem, _per_head)
    return None if rotate is None or attend is None else lambda t: attend(t, rotate(t))


def _token_lists(t: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """The block table as `mla_decode_rope` wants it: where each sequence's keys begin in a list of
    all keys' places in the cache."""
    block = t["k_cache"].shape[1]
    inside = torch.arange(block, device=t["q"].device)
    places = (t["block_table"].long()[:, :, None] * block + inside).flatten(1)
    keys = torch.arange(places.shape[1], device=t["q"].device)
    seen = keys[None, :] < t["context_len"][:, None]
    starts = torch.nn.functional.pad(t["context_len"].cumsum(0), (1, 0))
    return starts.int(), places[seen].int()


def mla_decode(problem: Problem) -> Peer | None:
    """`mla_decode_rope` without its rotation."""
    if problem["q"].dtype not in _SIXTEEN_BITS or not problem["k_cache"].contiguous:
        return None
    if problem["k_cache"].dtype != problem["q"].dtype:
        return None
    run = function("mla_decode_rope", "decode_attention_fwd_grouped_rope")
    units = function("utils.device_info", "get_num_sms")
    sequences, heads, dim = problem["q"].shape
    value = int(problem.attrs.get("value_dim", VALUE_DIM))
    scale = _scale(problem)
    lists = Prepared(_token_lists)

    def attend(t: Tensors) -> torch.Tensor:
        # Its callers choose the parts: two programs a compute unit, of 16 heads each.
        parts = min(128, next_power_of_2(cdiv(2 * units(), sequences * cdiv(heads, 16))))
        sums = torch.empty(
            sequences, heads, parts, value + 1, dtype=torch.float32, device=t["q"].device
        )
        starts, places = lists(t)
        keys = t["k_cache"].view(-1, 1, dim)
        run(
            t["q"], keys, keys[..., :value], t["out"], starts, places, None, value, dim - value,
            None, None, sums, parts, scale,
        )  # fmt: skip
        return t["out"]

    return attend
