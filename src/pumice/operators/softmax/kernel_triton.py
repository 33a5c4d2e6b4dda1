# mypy: ignore-errors
"""Softmax in two passes: maxima and sums lane by lane (Milakov and Gimelshein, arXiv:1805.02867),
then the values; a row that one block holds is read once."""

import triton
import triton.language as tl


@triton.jit
def softmax_rows(
    x,
    out,
    T,
    width,
    x_stride,
    out_stride,
    scale,
    LOG: tl.constexpr,
    WHOLE: tl.constexpr,  # a block holds a row
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    here = (rows < T)[:, None]
    lane = tl.arange(0, BLOCK)
    px = x + rows[:, None] * x_stride
    po = out + rows[:, None] * out_stride
    if WHOLE:
        columns = lane[None, :]
        mask = here & (columns < width)
        value = tl.load(px + columns, mask=mask, other=float("-inf")).to(tl.float32) * scale
        value = value - tl.max(value, axis=1)[:, None]
        exponential = tl.exp(value)
        total = tl.sum(exponential, axis=1)[:, None]
        if LOG:
            result = value - tl.log(total)
        else:
            result = exponential / total
        tl.store(po + columns, result.to(out.dtype.element_ty), mask=mask)
    else:
        top = tl.full((ROWS, BLOCK), -3.0e38, tl.float32)  # finite: −∞ − −∞ is no number
        sums = tl.zeros((ROWS, BLOCK), tl.float32)
        for first in range(0, width, BLOCK):
            columns = first + lane[None, :]
            mask = here & (columns < width)
            value = tl.load(px + columns, mask=mask, other=float("-inf")).to(tl.float32) * scale
            higher = tl.maximum(top, value)
            sums = sums * tl.exp(top - higher) + tl.exp(value - higher)
            top = higher
        highest = tl.max(top, axis=1)[:, None]
        total = tl.sum(sums * tl.exp(top - highest), axis=1)[:, None]
        for first in range(0, width, BLOCK):
            columns = first + lane[None, :]
            mask = here & (columns < width)
            value = tl.load(px + columns, mask=mask, other=float("-inf")).to(tl.float32) * scale
            if LOG:
                result = value - highest - tl.log(total)
            else:
                result = tl.exp(value - highest) / total
            tl.store(po + columns, result.to(out.dtype.element_ty), mask=mask)
