# mypy: ignore-errors
"""Kernels over rows without a reduction before them: plain or gated values, stored as they are or
in 8 bits. ACTIVATION: 0 none, 1 silu, 2 gelu, 3 gelu by tanh; with one, a row is gate then up.
EARLY: programs come to their places before the launch in front has ended (CUDA's programmatic
launches); what they read is waited for."""

import triton
import triton.language as tl

from pumice.operators.quantize_fp8.device_triton import begin, code_of, scale_of, store_row_codes
from pumice.operators.triton.float8_triton import widen


@triton.jit
def _load(
    x, rows, columns, mask, width, x_stride, ACTIVATION: tl.constexpr, ONCE: tl.constexpr = False
):
    """float32 [ROWS, BLOCK]; 0 where masked. ONCE: nobody reads it again."""
    at = x + rows[:, None] * x_stride + columns[None, :]
    value = tl.load(at, mask=mask, other=0.0, eviction_policy="evict_first" if ONCE else "")
    value = value.to(tl.float32)
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
    EARLY: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A tile of ROWS × BLOCK a program; with QUANTIZE 1 a tile is as wide as the rows."""
    begin(EARLY)
    program = tl.program_id(0)
    rows = (program // column_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first = (program % column_blocks) * BLOCK
    columns = first + tl.arange(0, BLOCK)
    mask = (rows < T)[:, None] & (columns < width)[None, :]
    GIVEN: tl.constexpr = QUANTIZE == 1 and ACTIVATION == 0
    amax = 0.0
    if GIVEN:
        at = x + rows[:, None] * x_stride + columns[None, :]
        raw = tl.load(at, mask=mask, other=0.0)
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
    EARLY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One scale a row of any width: a pass for the greatest value, another for the codes."""
    begin(EARLY)
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
def absmax_scale(
    x,
    partial,  # float32[programs]
    arrived,  # int32[1], zero, and zero again afterwards
    scale,
    T,
    width,
    column_blocks,
    tiles,
    x_stride,
    LARGEST: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    EARLY: tl.constexpr,
    PARTIALS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The scale of max|x|. A program looks at the tiles p, p + programs, …; the last one that is
    through makes the scale of what all have found."""
    begin(EARLY)
    programs = tl.num_programs(0)
    amax = tl.zeros((ROWS,), tl.float32)
    for tile in range(tl.program_id(0), tiles, programs):
        rows = (tile // column_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        columns = (tile % column_blocks) * BLOCK + tl.arange(0, BLOCK)
        mask = (rows < T)[:, None] & (columns < width)[None, :]
        raw = tl.load(x + rows[:, None] * x_stride + columns[None, :], mask=mask, other=0.0)
        amax = tl.maximum(amax, _row_amax(raw))
    tl.store(partial + tl.program_id(0), tl.max(amax, axis=0))
    tl.debug_barrier()
    before = tl.atomic_add(arrived, 1, sem="acq_rel")
    if before == programs - 1:
        index = tl.arange(0, PARTIALS)
        found = tl.load(partial + index, mask=index < programs, other=0.0, cache_modifier=".cg")
        tl.store(scale, scale_of(tl.max(found, axis=0), LARGEST, POWER_OF_TWO))
        tl.store(arrived, 0)


@triton.jit
def quantize_tensor(
    x,
    out,
    scale,
    T,
    width,
    column_blocks,
    x_stride,
    out_stride,
    STATIC: tl.constexpr,
    LARGEST: tl.constexpr,
    BITWISE: tl.constexpr,
    EARLY: tl.constexpr,
    ONCE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Codes under one scale: given (STATIC), or that of the launch in front."""
    program = tl.program_id(0)
    if STATIC:
        begin(EARLY)
    else:
        # What the pass before read last may still be in the cache: it comes first.
        program = tl.num_programs(0) - 1 - program
    rows = (program // column_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = (program % column_blocks) * BLOCK + tl.arange(0, BLOCK)
    mask = (rows < T)[:, None] & (columns < width)[None, :]
    # The pass in front has waited for x already.
    value = _load(x, rows, columns, mask, width, x_stride, 0, ONCE)
    if not STATIC:
        begin(EARLY)
    step = tl.load(scale)
    at = out + rows[:, None] * out_stride + columns[None, :]
    code = code_of(value * (1.0 / step), LARGEST, out.dtype.element_ty, BITWISE)
    tl.store(at, code, mask=mask, eviction_policy="evict_first" if ONCE else "")


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
