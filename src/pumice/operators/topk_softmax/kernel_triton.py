# mypy: ignore-errors
"""Routing of a few tokens a program: the best expert is taken out k times."""

import triton
import triton.language as tl


@triton.jit
def topk_rows(
    logits, bias, weights, ids, T, E, stride_t,
    K: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr, BE: tl.constexpr,
    GROUPS: tl.constexpr, KEPT: tl.constexpr, SIGMOID: tl.constexpr, RENORMALIZE: tl.constexpr,
    SCALE: tl.constexpr,
):  # fmt: skip
    """BT tokens, all experts of each in BE columns; BK columns hold the K chosen."""
    rows = tl.program_id(0) * BT + tl.arange(0, BT)
    experts = tl.arange(0, BE)
    real = experts < E
    at = logits + rows.to(tl.int64)[:, None] * stride_t + experts[None, :]
    x = tl.load(at, mask=(rows < T)[:, None] & real[None, :], other=0.0).to(tl.float32)
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-x))
    else:
        x = tl.where(real[None, :], x, float("-inf"))
        scores = tl.exp(x - tl.max(x, 1)[:, None])
        scores = scores / tl.sum(scores, 1)[:, None]
    choice = scores
    if bias is not None:
        choice += tl.load(bias + experts, mask=real, other=0.0)[None, :]
    choice = tl.where(real[None, :], choice, float("-inf"))
    if GROUPS > 1:
        grouped = tl.reshape(choice, (BT, GROUPS, BE // GROUPS))
        worth = tl.max(grouped, 2)
        if bias is not None:
            first = tl.argmax(grouped, 2)
            member = tl.arange(0, BE // GROUPS)[None, None, :]
            rest = tl.where(member == first[:, :, None], float("-inf"), grouped)
            worth += tl.max(rest, 2)
        group = tl.arange(0, GROUPS)[None, :]
        kept = tl.zeros((BT, GROUPS), dtype=tl.int32)
        for _ in tl.static_range(KEPT):
            best = group == tl.argmax(worth, 1)[:, None]
            kept = tl.where(best, 1, kept)
            worth = tl.where(best, float("-inf"), worth)
        grouped = tl.where((kept > 0)[:, :, None], grouped, float("-inf"))
        choice = tl.reshape(grouped, (BT, BE))
    slots = tl.arange(0, BK)
    chosen = tl.zeros((BT, BK), dtype=tl.int32)
    found = tl.zeros((BT, BK), dtype=tl.float32)
    for j in tl.static_range(K):
        best = tl.argmax(choice, 1)
        here = experts[None, :] == best[:, None]
        score = tl.sum(tl.where(here, scores, 0.0), 1)
        slot = (slots == j)[None, :]
        chosen = tl.where(slot, best[:, None], chosen)
        found = tl.where(slot, score[:, None], found)
        choice = tl.where(here, float("-inf"), choice)
    if RENORMALIZE:
        found = found / tl.sum(found, 1)[:, None]
    mask = (rows < T)[:, None] & (slots < K)[None, :]
    to = rows.to(tl.int64)[:, None] * K + slots[None, :]
    tl.store(weights + to, found * SCALE, mask=mask)
    tl.store(ids + to, chosen, mask=mask)
