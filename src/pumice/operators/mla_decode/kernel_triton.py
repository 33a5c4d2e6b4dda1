# mypy: ignore-errors
"""Decode attention over a paged latent cache, split over the keys.

Products are transposed: keys are rows of the matrix unit and heads its columns, so that 16 heads
need no padding to a warpgroup's 64 rows, and the one tile of latents that is read serves both
products from shared memory.
"""

import triton
import triton.language as tl


@triton.jit
def mla_decode(
    q,
    cache,
    block_table,
    context_len,
    out,
    lse,
    stride_qs,
    stride_qh,
    stride_cb,
    stride_cn,
    stride_table,
    stride_os,
    stride_oh,
    stride_split,
    stride_ls,
    stride_lh,
    heads,
    head_blocks,
    splits,
    scale,
    D: tl.constexpr,
    DV: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
):
    """A program takes BLOCK_H heads of a sequence and one part of its keys; scale is in units of
    log 2. `lse`: see `paged_attention.kernel_triton`. DV is a power of two, D ≤ DV + BLOCK_R."""
    # Programs that read the same latents run side by side.
    pid = tl.program_id(0)
    block = pid % head_blocks
    split = pid // head_blocks % splits
    sequence = (pid // head_blocks // splits).to(tl.int64)
    context = tl.load(context_len + sequence)
    share = tl.cdiv(tl.cdiv(context, splits), BLOCK_N) * BLOCK_N
    begin = split * share
    end = tl.minimum(begin + share, context)

    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, DV)
    r = DV + tl.arange(0, BLOCK_R)
    head = block * BLOCK_H + tl.arange(0, BLOCK_H)
    valid = head < heads
    q_rows = q + sequence * stride_qs + (head * stride_qh)[:, None]
    q_latent = tl.load(q_rows + d[None, :], mask=valid[:, None], other=0.0)
    mask = valid[:, None] & (r < D)[None, :]
    q_rope = tl.load(q_rows + r[None, :], mask=mask, other=0.0)
    q_latent = tl.trans(q_latent)  # [DV, BLOCK_H]
    q_rope = tl.trans(q_rope)

    maximum = tl.full([BLOCK_H], -1e30, tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([DV, BLOCK_H], tl.float32)
    table = block_table + sequence * stride_table
    if PAGE % BLOCK_N == 0:  # a tile lies in one block
        page = tl.load(table + begin // PAGE, mask=begin < end, other=0)
    elif BLOCK_N % PAGE == 0:
        page = tl.load(table + begin // PAGE + n // PAGE, mask=begin + n < end, other=0)
    else:
        page = tl.load(table + (begin + n) // PAGE, mask=begin + n < end, other=0)
    for start in range(begin, end, BLOCK_N):
        column = start + n
        inside = column < end
        if PAGE % BLOCK_N == 0:
            tile = cache + page.to(tl.int64) * stride_cb + (start % PAGE) * stride_cn
            rows = tile + (n * stride_cn)[:, None]
            page = tl.load(table + (start + BLOCK_N) // PAGE, mask=start + BLOCK_N < end, other=0)
        else:
            if BLOCK_N % PAGE == 0:
                offset = n % PAGE
                index = (start + BLOCK_N) // PAGE + n // PAGE
            else:
                offset = column % PAGE
                index = (column + BLOCK_N) // PAGE
            rows = cache + (page.to(tl.int64) * stride_cb + offset * stride_cn)[:, None]
            page = tl.load(table + index, mask=column + BLOCK_N < end, other=0)
        latent = tl.load(rows + d[None, :], mask=inside[:, None], other=0.0)
        rope = tl.load(rows + r[None, :], mask=inside[:, None] & (r < D)[None, :], other=0.0)
        s = tl.dot(latent, q_latent)  # [BLOCK_N, BLOCK_H]
        s = tl.dot(rope, q_rope, s)
        s = tl.where(inside[:, None], s, float("-inf"))
        new = tl.maximum(maximum, tl.max(s, 0) * scale)
        weights = tl.exp2(s * scale - new[None, :])
        factor = tl.exp2(maximum - new)
        total = total * factor + tl.sum(weights, 0)
        maximum = new
        acc = acc * factor[None, :]
        acc = tl.dot(tl.trans(latent), weights.to(latent.dtype), acc)

    some = total > 0.0
    divisor = tl.where(some, total, 1.0)
    acc = acc * (1.0 / divisor)[None, :]
    o_rows = out + sequence * stride_os + split * stride_split + (head * stride_oh)[None, :]
    if lse is not None:
        tl.store(o_rows + d[:, None], acc, mask=(valid & some)[None, :])
        value = tl.where(some, maximum + tl.log2(divisor), float("-inf"))
        tl.store(lse + sequence * stride_ls + head * stride_lh + split, value, mask=valid)
    else:
        tl.store(o_rows + d[:, None], acc.to(out.dtype.element_ty), mask=valid[None, :])
