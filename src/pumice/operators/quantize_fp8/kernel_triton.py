# mypy: ignore-errors
"""Kernels over rows without a reduction before them: plain or gated values, stored as they are or
in 8 bits. ACTIVATION: 0 none, 1 silu, 2 gelu, 3 gelu by tanh; with one, a row is gate then up."""

import triton
import triton.language as tl

from pumice.operators.quantize_fp8.device_triton import code_of, scale_of, store_row_codes
from pumice.operators.triton.float8_triton import widen


@triton.jit
def _load(x, rows, columns, mask, width, x_stride, ACTIVATION: tl.constexpr):
    """float32 [ROWS, BLOCK]; 0 where masked."""
    at = x + rows[:, None] * x_stride + columns[None, :]
    value = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION != 0:
        up = tl.load(at + width, mask=mask, other=0.0).to(tl.float32)
        if ACTIVATION == 1:
            value = value / (1.0 + tl.exp(-value))
        elif ACTIVATION == 2:
            value = 0.5 * value * (1.0 + tl.erf(value * 0.7071067811865476))
        else:  # (1 + tanh z) / 2 is the sigmoid of 2z
            twice = 1.5957691216057308 * (value + 0.044715 * value * value * value)
            value = value / (1.0 + tl.exp(-twice))
        value = value * up
    return value


@triton.jit
def _row_amax(values):
    """max|value| of rows, float32. The bits of a float without its sign are ordered as it is, so
    nothing but the values themselves, as they were loaded, is kept in registers for later."""
    if values.dtype.primitive_bitwidth == 16:
        greatest = tl.max(values.to(tl.int16, bitcast=True) & 0x7FFF, axis=1).to(tl.int16)
    else:
        greatest = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    return greatest.to(values.dtype, bitcast=True).to(tl.float32)


@triton.jit
def map_tiles(
    x,
    out,
    scales,
    T,
    width,
    column_blocks,
    x_stride,
    out_stride,
    scales_stride,
    ACTIVATION: tl.constexpr,
    QUANTIZE: tl.constexpr,
    LARGEST: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    BITWISE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A tile of ROWS × BLOCK a program; with QUANTIZE 1 a tile is as wide as the rows."""
    program = tl.program_id(0)
    rows = (program // column_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first = (program % column_blocks) * BLOCK
    columns = first + tl.arange(0, BLOCK)
    mask = (rows < T)[:, None] & (columns < width)[None, :]
    GIVEN: tl.constexpr = QUANTIZE == 1 and ACTIVATION == 0
    amax = 0.0
    if GIVEN:
        raw = tl.load(x + rows[:, None] * x_stride + columns[None, :], mask=mask, other=0.0)
        amax = _row_amax(raw)
        value = raw.to(tl.float32)
    else:
        value = _load(x, rows, columns, mask, width, x_stride, ACTIVATION)
    store_row_codes(
        value, out, scales, rows, first, T, width, out_stride, scales_stride, amax,
        GIVEN, QUANTIZE, LARGEST, POWER_OF_TWO, BITWISE, ROWS, BLOCK,
    )  # fmt: skip


@triton.jit
def map_loop(
    x,
    out,
    scales,
    T,
    width,
    x_stride,
    out_stride,
    scales_stride,
    ACTIVATION: tl.constexpr,
    LARGEST: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    BITWISE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One scale a row of any width: a pass for the greatest value, another for the codes."""
    rows = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    amax = tl.zeros((1,), tl.float32)
    for first in range(0, width, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        mask = (columns < width)[None, :]
        value = _load(x, rows, columns, mask, width, x_stride, ACTIVATION)
        amax = tl.maximum(amax, tl.max(tl.abs(value), axis=1))
    for first in range(0, width, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        mask = (columns < width)[None, :]
        value = _load(x, rows, columns, mask, width, x_stride, ACTIVATION)
        store_row_codes(
            value, out, scales, rows, first, T, width, out_stride, scales_stride, amax,
            True, 1, LARGEST, POWER_OF_TWO, BITWISE, 1, BLOCK,
        )  # fmt: skip


@triton.jit
def absmax_partial(
    x,
    partial,
    T,
    width,
    column_blocks,
    tiles,
    x_stride,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """partial[p] = max|x| over the tiles p, p + programs, …"""
    amax = tl.zeros((ROWS, BLOCK), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        rows = (tile // column_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        columns = (tile % column_blocks) * BLOCK + tl.arange(0, BLOCK)
        mask = (rows < T)[:, None] & (columns < width)[None, :]
        value = _load(x, rows, columns, mask, width, x_stride, 0)
        amax = tl.maximum(amax, tl.abs(value))
    tl.store(partial + tl.program_id(0), tl.max(tl.max(amax, axis=1), axis=0))


@triton.jit
def quantize_tensor(
    x,
    out,
    partial,
    scale,
    T,
    width,
    column_blocks,
    partials,
    x_stride,
    out_stride,
    STATIC: tl.constexpr,
    LARGEST: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    BITWISE: tl.constexpr,
    PARTIALS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Codes under one scale: given (STATIC), or that of the partial maxima, which is stored."""
    program = tl.program_id(0)
    if not STATIC:
        # What the pass before read last may still be in the cache: it comes first.
        program = tl.num_programs(0) - 1 - program
    rows = (program // column_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = (program % column_blocks) * BLOCK + tl.arange(0, BLOCK)
    mask = (rows < T)[:, None] & (columns < width)[None, :]
    # Asked for before the maxima, which all warps wait for.
    value = _load(x, rows, columns, mask, width, x_stride, 0)
    if STATIC:
        step = tl.load(scale)
    else:
        index = tl.arange(0, PARTIALS)
        amax = tl.max(tl.load(partial + index, mask=index < partials, other=0.0), axis=0)
        step = scale_of(amax, LARGEST, POWER_OF_TWO)
        if program == 0:
            tl.store(scale, step)
    at = out + rows[:, None] * out_stride + columns[None, :]
    code = code_of(value * (1.0 / step), LARGEST, out.dtype.element_ty, BITWISE)
    tl.store(at, code, mask=mask)


@triton.jit
def dequantize_tiles(
    x,
    scales,
    out,
    T,
    width,
    column_blocks,
    x_stride,
    scales_stride,
    out_stride,
    row_group,
    column_group,
    BITWISE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """code · scale of its block of row_group × column_group."""
    program = tl.program_id(0)
    rows = (program // column_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = (program % column_blocks) * BLOCK + tl.arange(0, BLOCK)
    mask = (rows < T)[:, None] & (columns < width)[None, :]
    code = tl.load(x + rows[:, None] * x_stride + columns[None, :], mask=mask, other=0.0)
    at = (rows // row_group)[:, None] * scales_stride + (columns // column_group)[None, :]
    value = widen(code, tl.float32, BITWISE) * tl.load(scales + at, mask=mask, other=0.0)
    at = out + rows[:, None] * out_stride + columns[None, :]
    tl.store(at, value.to(out.dtype.element_ty), mask=mask)
