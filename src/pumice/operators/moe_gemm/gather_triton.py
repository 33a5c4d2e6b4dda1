# mypy: ignore-errors
"""Rows of x in the order of their experts, where the tensor memory accelerator can take them."""

import triton
import triton.language as tl


@triton.jit
def gather_rows(
    x, x_scale, order, used, to, to_scale, ENTRIES, K, places, stride_xm, stride_sm, stride_sk,
    TOPK: tl.constexpr, ROWS: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """to[place] = x of the entry's token, [places, K]; places without an entry are left as they
    are. to_scale [ceil(K/GROUP), places], if x has scales: as its readers need them, a block of K
    of many rows at once. DEPTH: a power of two, at least that many blocks of K."""
    first = tl.program_id(0) * ROWS
    if first >= tl.load(used):
        return
    rows = first + tl.arange(0, ROWS)
    entries = tl.load(order + rows)
    valid = entries < ENTRIES
    tokens = (tl.minimum(entries, ENTRIES - 1) // TOPK).to(tl.int64)
    if x_scale is not None:
        blocks = tl.arange(0, DEPTH)
        real = valid[:, None] & (blocks * GROUP < K)[None, :]
        at = x_scale + tokens[:, None] * stride_sm + blocks[None, :] * stride_sk
        scales = tl.load(at, mask=real, other=0.0)
        far = blocks.to(tl.int64)[None, :] * places
        tl.store(to_scale + far + rows[:, None], scales, mask=real)
    for k in range(0, K, BK):
        cols = k + tl.arange(0, BK)
        mask = valid[:, None] & (cols < K)[None, :]
        values = tl.load(x + tokens[:, None] * stride_xm + cols[None, :], mask=mask, other=0.0)
        tl.store(to + rows.to(tl.int64)[:, None] * K + cols[None, :], values, mask=mask)
