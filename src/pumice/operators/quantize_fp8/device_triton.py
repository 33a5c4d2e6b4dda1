# mypy: ignore-errors
"""Device functions of kernels that write 8-bit rows."""

import triton
import triton.language as tl

from pumice.operators.triton.float8_triton import narrow


@triton.jit
def begin(EARLY: tl.constexpr):
    """Waits until all of the launch in front is done and seen; the one behind may come to its
    places from here on."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def scale_of(amax, LARGEST: tl.constexpr, POWER_OF_TWO: tl.constexpr):
    """max|value| → scale."""
    scale = tl.maximum(amax, 1e-10) * (1.0 / LARGEST)
    if POWER_OF_TWO:  # up to the next power of two: a carry out of the mantissa
        bits = scale.to(tl.int32, bitcast=True)
        scale = ((bits + 0x7FFFFF) & 0x7F800000).to(tl.float32, bitcast=True)
    return scale


@triton.jit
def code_of(steps, LARGEST: tl.constexpr, DTYPE: tl.constexpr, BITWISE: tl.constexpr):
    """value / scale → code, to nearest even, saturating."""
    steps = tl.minimum(tl.maximum(steps, -LARGEST), LARGEST)
    if DTYPE == tl.int8:  # 1.5·2²³ leaves no bits for the fraction
        return ((steps + 12582912.0) - 12582912.0).to(tl.int8)
    else:
        return narrow(steps, DTYPE, BITWISE)


@triton.jit
def store_row_codes(
    values,  # float32 [ROWS, BLOCK], zero beyond the row
    out,
    scales,
    rows,  # int64 [ROWS]
    first,  # column of values[:, 0], a multiple of 128
    T,
    width,
    out_stride,
    scales_stride,
    row_amax,  # [ROWS], read when QUANTIZE is 1 and GIVEN
    GIVEN: tl.constexpr,
    QUANTIZE: tl.constexpr,
    LARGEST: tl.constexpr,
    POWER_OF_TWO: tl.constexpr,
    BITWISE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Writes a block of rows: as it is (QUANTIZE 0), by a scale a row (1) or a group of 128 (2)."""
    columns = first + tl.arange(0, BLOCK)
    at = out + rows[:, None] * out_stride + columns[None, :]
    mask = (rows < T)[:, None] & (columns < width)[None, :]
    if QUANTIZE == 0:
        tl.store(at, values.to(out.dtype.element_ty), mask=mask)
    elif QUANTIZE == 1:
        if GIVEN:
            amax = row_amax
        else:
            amax = tl.max(tl.abs(values), axis=1)
        scale = scale_of(amax, LARGEST, POWER_OF_TWO)
        codes = code_of(values * (1.0 / scale)[:, None], LARGEST, out.dtype.element_ty, BITWISE)
        tl.store(at, codes, mask=mask)
        tl.store(scales + rows * scales_stride, scale, mask=(rows < T) & (first == 0))
    else:
        blocks = tl.reshape(values, (ROWS, BLOCK // 128, 128))
        scale = scale_of(tl.max(tl.abs(blocks), axis=2), LARGEST, POWER_OF_TWO)
        steps = tl.reshape(blocks * (1.0 / scale)[:, :, None], (ROWS, BLOCK))
        tl.store(at, code_of(steps, LARGEST, out.dtype.element_ty, BITWISE), mask=mask)
        group = first // 128 + tl.arange(0, BLOCK // 128)
        inside = (rows < T)[:, None] & (group * 128 < width)[None, :]
        tl.store(scales + rows[:, None] * scales_stride + group[None, :], scale, mask=inside)
