# mypy: ignore-errors
"""Rows of a table, decoded where it is quantized.

Every element reads its own code: neighbours read the same word, which the cache has. A table's rows
are a small part of a model's bytes, so nothing is gained by exchanging registers."""

import triton
import triton.language as tl


@triton.jit
def _code4(weight, row, column, mask, words, BLOCKS: tl.constexpr):
    """Code `column` of rows of packed words (`gemm_w4/layout.py`)."""
    if BLOCKS:  # word t of group γ of a block of 128 codes lies at place 4t + γ
        place = (column // 128) * 16 + ((column % 32) // 8) * 4 + (column % 128) // 32
    else:
        place = column // 8
    word = tl.load(weight + row * words + place, mask=mask, other=0)
    return (word >> ((column % 2) * 16 + ((column % 8) // 2) * 4)) & 15


@triton.jit
def embedding_rows(
    tokens,
    weight,
    scales,
    zeros,
    mins,
    out,
    T,
    V,
    width,
    weight_stride,
    scale_columns,
    out_stride,
    scale,
    BITS: tl.constexpr,  # of a code: 4, 8, or 0 for a table of floats
    BLOCKS: tl.constexpr,
    GROUP: tl.constexpr,
    ZERO: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    token = tl.load(tokens + row, mask=row < T, other=-1).to(tl.int64)
    inside = (token >= 0) & (token < V)
    mask = (column < width) & inside[:, None]
    if BITS == 4:
        value = _code4(weight, token[:, None], column, mask, weight_stride, BLOCKS)
    else:
        value = tl.load(weight + token[:, None] * weight_stride + column, mask=mask, other=0)
    value = value.to(tl.float32)
    if BITS > 0:
        at = token[:, None] * scale_columns + column // GROUP
        if zeros is not None:
            value -= tl.load(zeros + at, mask=mask, other=0).to(tl.float32)
        elif ZERO != 0:
            value -= ZERO
        value *= tl.load(scales + at, mask=mask, other=0.0).to(tl.float32)
        if mins is not None:
            value -= tl.load(mins + at, mask=mask, other=0.0).to(tl.float32)
    value = (value * scale).to(out.dtype.element_ty)
    mask = (column < width) & (row < T)[:, None]
    tl.store(out + row[:, None] * out_stride + column, value, mask=mask)
