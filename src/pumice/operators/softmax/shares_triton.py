# mypy: ignore-errors
"""Softmax of few long rows: a row is cut into shares, a program each. The first launch leaves every
share's maximum and sum, the second combines a row's and writes the values.

EARLY: the second launch comes to its places before the first has ended (CUDA's programmatic
launches), and waits there.
"""

import triton
import triton.language as tl

from pumice.operators.quantize_fp8.device_triton import begin


@triton.jit
def softmax_shares(
    x, found, width, x_stride, scale, chunk,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """found: float32 [rows, 2, PARTS], maxima and sums of exp(scale · x − maximum). Grid (rows,
    shares)."""
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    end = tl.minimum(width, (part + 1) * chunk)
    top = tl.full((BLOCK,), -3.0e38, tl.float32)  # finite: −∞ − −∞ is no number
    sums = tl.zeros((BLOCK,), tl.float32)
    for first in range(part * chunk, end, BLOCK):
        columns = first + lane
        value = tl.load(x + row * x_stride + columns, mask=columns < end, other=float("-inf"))
        value = value.to(tl.float32) * scale
        higher = tl.maximum(top, value)
        sums = sums * tl.exp(top - higher) + tl.exp(value - higher)
        top = higher
    highest = tl.max(top, axis=0)
    at = found + row * (2 * PARTS) + part
    tl.store(at, highest)
    tl.store(at + PARTS, tl.sum(sums * tl.exp(top - highest), axis=0))


@triton.jit
def softmax_combined(
    x, out, found, width, x_stride, out_stride, scale, chunk, parts,
    LOG: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Grid as in `softmax_shares`; `parts` of the PARTS places are filled."""
    begin(EARLY)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    index = tl.arange(0, PARTS)
    at = found + row * (2 * PARTS) + index
    maxima = tl.load(at, mask=index < parts, other=-3.0e38)
    highest = tl.max(maxima, axis=0)
    sums = tl.load(at + PARTS, mask=index < parts, other=0.0)
    total = tl.sum(sums * tl.exp(maxima - highest), axis=0)
    lane = tl.arange(0, BLOCK)
    end = tl.minimum(width, (part + 1) * chunk)
    for first in range(part * chunk, end, BLOCK):
        columns = first + lane
        mask = columns < end
        value = tl.load(x + row * x_stride + columns, mask=mask, other=float("-inf"))
        value = value.to(tl.float32) * scale - highest
        if LOG:
            result = value - tl.log(total)
        else:
            result = tl.exp(value) / total
        tl.store(out + row * out_stride + columns, result.to(out.dtype.element_ty), mask=mask)
