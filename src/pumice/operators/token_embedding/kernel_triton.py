# mypy: ignore-errors
"""Rows of a table."""

import triton
import triton.language as tl


@triton.jit
def embedding_rows(
    tokens,
    weight,
    out,
    T,
    V,
    width,
    weight_stride,
    out_stride,
    scale,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    token = tl.load(tokens + row, mask=row < T, other=-1).to(tl.int64)
    inside = (token >= 0) & (token < V)
    mask = (column < width) & inside[:, None]
    value = tl.load(weight + token[:, None] * weight_stride + column, mask=mask, other=0.0)
    value = (value.to(tl.float32) * scale).to(out.dtype.element_ty)
    mask = (column < width) & (row < T)[:, None]
    tl.store(out + row[:, None] * out_stride + column, value, mask=mask)
