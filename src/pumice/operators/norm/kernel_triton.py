# mypy: ignore-errors
"""Normalization of rows. `norm_rows` holds whole rows in registers; `norm_loop` walks over rows
that do not fit, a row a program, and reads them again from the cache."""

import triton
import triton.language as tl

from pumice.operators.quantize_fp8.device_triton import begin, store_row_codes


@triton.jit
def _load(x, residual, rows, columns, mask, x_stride, residual_stride):
    """x in float32, or the sum with the residual, rounded as it is stored."""
    value = tl.load(x + rows[:, None] * x_stride + columns[None, :], mask=mask, other=0.0)
    value = value.to(tl.float32)
    if residual is not None:
        at = residual + rows[:, None] * residual_stride + columns[None, :]
        value += tl.load(at, mask=mask, other=0.0).to(tl.float32)
        value = value.to(residual.dtype.element_ty)
        tl.store(at, value, mask=mask)
        value = value.to(tl.float32)
    return value


@triton.jit
def _operand(pointer, columns, inside, offset):
    """A weight or bias of the columns in float32, plus offset; 0 where it is absent."""
    value = 0.0
    if pointer is not None:
        value = tl.load(pointer + columns, mask=inside, other=0.0).to(tl.float32)[None, :] + offset
    return value


@triton.jit
def _affine(value, weight, bias, weights, shifts):
    """value · weights + shifts; absent ones left out."""
    if weight is not None:
        value = value * weights
    if bias is not None:
        value = value + shifts
    return value


@triton.jit
def norm_rows(
    x,
    residual,
    weight,
    bias,
    out,
    scales,
    T,
    H,
    x_stride,
    residual_stride,
    out_stride,
    scales_stride,
    eps,
    weight_offset,
    LAYER: tl.constexpr,
    QUANTIZE: tl.constexpr,
    LARGEST: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    BITWISE: tl.constexpr,
    EARLY: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    begin(EARLY)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    mask = (rows < T)[:, None] & inside[None, :]
    value = _load(x, residual, rows, columns, mask, x_stride, residual_stride)
    # Asked for before the sums, which all warps wait for: a few rows wait for memory once, then.
    weights = _operand(weight, columns, inside, weight_offset)
    shifts = _operand(bias, columns, inside, 0.0)
    if LAYER:
        mean = tl.sum(value, axis=1) / H
        value = tl.where(inside[None, :], value - mean[:, None], 0.0)
    factor = tl.rsqrt(tl.sum(value * value, axis=1) / H + eps)
    value = _affine(value * factor[:, None], weight, bias, weights, shifts)
    store_row_codes(
        value, out, scales, rows, 0, T, H, out_stride, scales_stride, factor,
        False, QUANTIZE, LARGEST, POWER_OF_TWO, BITWISE, ROWS, BLOCK,
    )  # fmt: skip


@triton.jit
def norm_loop(
    x,
    residual,
    weight,
    bias,
    out,
    scales,
    T,
    H,
    x_stride,
    residual_stride,
    out_stride,
    scales_stride,
    eps,
    weight_offset,
    LAYER: tl.constexpr,
    QUANTIZE: tl.constexpr,
    LARGEST: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    BITWISE: tl.constexpr,
    EARLY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    begin(EARLY)
    rows = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    mean = tl.zeros((1,), tl.float32)
    squares = tl.zeros((1,), tl.float32)
    for first in range(0, H, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < H
        value = _load(x, residual, rows, columns, inside[None, :], x_stride, residual_stride)
        if LAYER:  # Chan's update: the sums of blocks around their own means
            before = first * 1.0
            count = tl.minimum(BLOCK, H - first) * 1.0
            own = tl.sum(value, axis=1) / count
            centred = tl.where(inside[None, :], value - own[:, None], 0.0)
            delta = own - mean
            total = before + count
            squares += tl.sum(centred * centred, axis=1) + delta * delta * (before * count / total)
            mean += delta * (count / total)
        else:
            squares += tl.sum(value * value, axis=1)
    factor = tl.rsqrt(squares / H + eps)
    # What the first pass stored is read by other threads of the program from here on.
    if residual is not None:
        tl.debug_barrier()
        source = residual
        source_stride = residual_stride
    else:
        source = x
        source_stride = x_stride
    amax = tl.zeros((1,), tl.float32)
    if QUANTIZE == 1:
        for first in range(0, H, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            inside = columns < H
            value = _load(source, None, rows, columns, inside[None, :], source_stride, 0)
            value = (value - mean[:, None]) * factor[:, None]
            weights = _operand(weight, columns, inside, weight_offset)
            shifts = _operand(bias, columns, inside, 0.0)
            value = _affine(value, weight, bias, weights, shifts)
            value = tl.where(inside[None, :], tl.abs(value), 0.0)
            amax = tl.maximum(amax, tl.max(value, axis=1))
    for first in range(0, H, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        inside = columns < H
        value = _load(source, None, rows, columns, inside[None, :], source_stride, 0)
        value = (value - mean[:, None]) * factor[:, None]
        weights = _operand(weight, columns, inside, weight_offset)
        shifts = _operand(bias, columns, inside, 0.0)
        value = _affine(value, weight, bias, weights, shifts)
        value = tl.where(inside[None, :], value, 0.0)
        store_row_codes(
            value, out, scales, rows, first, T, H, out_stride, scales_stride, amax,
            True, QUANTIZE, LARGEST, POWER_OF_TWO, BITWISE, 1, BLOCK,
        )  # fmt: skip
