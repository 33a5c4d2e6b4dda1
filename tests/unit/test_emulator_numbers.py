"""Conversions of small floating-point formats: every code, against ml_dtypes; rounding against
a search among all values.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pumice.emulator.numbers import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    F16,
    F32,
    FORMATS,
    FloatFormat,
    Overflow,
    Rounding,
    decode,
    encode,
)
from pumice.errors import UsageError

REFERENCE = {
    F16: np.float16,
    BF16: ml_dtypes.bfloat16,
    E5M2: ml_dtypes.float8_e5m2,
    E4M3: ml_dtypes.float8_e4m3fn,
    E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
    E3M2: ml_dtypes.float6_e3m2fn,
    E2M3: ml_dtypes.float6_e2m3fn,
    E2M1: ml_dtypes.float4_e2m1fn,
    E8M0: ml_dtypes.float8_e8m0fnu,
}
SIGNED = [f for f in REFERENCE if f is not E8M0]
SMALL = [f for f in SIGNED if f.bits <= 8]


def codes_of(target: FloatFormat) -> np.ndarray:
    return np.arange(1 << target.bits, dtype=target.storage)


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal as numbers, zeros' signs and NaNs included."""
    np.testing.assert_array_equal(actual, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(actual[numbers]), np.signbit(expected[numbers]))


def probes(target: FloatFormat) -> np.ndarray:
    """float32 values: everything a format has, midpoints, their neighbours, and beyond."""
    values = decode(codes_of(target), target)
    values = np.unique(values[np.isfinite(values)]).astype(np.float64)
    middles = (values[1:] + values[:-1]) / 2
    largest = values[-1]
    beyond = largest * np.array([1.001, 1.0625, 1.1, 1.25, 1.5, 2, 1000])
    exact = np.concatenate([values, middles, beyond, -beyond, [0.0, -0.0]])
    exact = exact[np.abs(exact) < 3.4e38].astype(np.float32)
    near = [np.nextafter(exact, np.float32(np.inf)), np.nextafter(exact, np.float32(-np.inf))]
    tiny = np.array([1e-45, -1e-45, 1.1754944e-38, 2.0**-140], np.float32)
    noise = np.random.default_rng(7).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    noise = noise.view(np.float32)
    return np.concatenate([exact, *near, tiny, noise[np.isfinite(noise)]])


@pytest.mark.parametrize("target", REFERENCE, ids=lambda f: f.name)
def test_every_code_decodes(target: FloatFormat) -> None:
    codes = codes_of(target)
    expected = codes.view(REFERENCE[target]).astype(np.float32)
    same(decode(codes, target), expected)


@pytest.mark.parametrize("target", SIGNED, ids=lambda f: f.name)
def test_every_code_survives_a_round_trip(target: FloatFormat) -> None:
    codes = codes_of(target)
    values = decode(codes, target)
    back = encode(values, target)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(back[numbers], codes[numbers])
    assert np.isnan(decode(back[~numbers], target)).all()
    if target.ieee:  # quiet, sign and payload kept
        quiet = codes[~numbers] | (1 << (target.mantissa_bits - 1))
        np.testing.assert_array_equal(back[~numbers], quiet)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("target", SIGNED, ids=lambda f: f.name)
def test_nearest_even_is_the_references(target: FloatFormat, dtype: type) -> None:
    values = probes(target).astype(dtype)
    with np.errstate(over="ignore", under="ignore"):
        expected = values.astype(REFERENCE[target]).astype(np.float32)
    actual = decode(encode(values, target), target)
    same(actual, expected)


@pytest.mark.parametrize("target", SIGNED, ids=lambda f: f.name)
def test_float64_is_rounded_once(target: FloatFormat) -> None:
    """Just beside the middle of two neighbours, where a float32 on the way would decide wrongly."""
    values = decode(codes_of(target), target)
    values = np.unique(values[np.isfinite(values)]).astype(np.float64)
    middles = (values[1:] + values[:-1]) / 2
    above = encode(np.nextafter(middles, np.inf), target)
    below = encode(np.nextafter(middles, -np.inf), target)
    np.testing.assert_array_equal(decode(above, target), values[1:])
    np.testing.assert_array_equal(decode(below, target), values[:-1])


@pytest.mark.parametrize("rounding", [Rounding.UP, Rounding.DOWN, Rounding.TOWARD_ZERO])
@pytest.mark.parametrize("target", SMALL, ids=lambda f: f.name)
def test_directed_rounding_is_exact(target: FloatFormat, rounding: Rounding) -> None:
    """Neighbours are found by search among all of the format's values."""
    grid = decode(codes_of(target), target).astype(np.float64)
    grid = np.unique(grid[np.isfinite(grid)])
    values = probes(target).astype(np.float64)
    values = values[np.abs(values) <= grid[-1]]
    below = grid[np.searchsorted(grid, values, side="right") - 1]
    above = grid[np.searchsorted(grid, values, side="left")]
    toward_zero = np.where(values > 0, below, above)
    expected = {Rounding.UP: above, Rounding.DOWN: below}.get(rounding, toward_zero)
    actual = decode(encode(values, target, rounding=rounding), target)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("target", [F16, BF16], ids=lambda f: f.name)
def test_directed_rounding_of_16_bits_brackets_the_value(target: FloatFormat) -> None:
    values = probes(target)
    largest = decode(np.array([target.largest]), target)[0]
    values = values[np.abs(values) <= largest]
    up = decode(encode(values, target, rounding=Rounding.UP), target)
    down = decode(encode(values, target, rounding=Rounding.DOWN), target)
    zero = decode(encode(values, target, rounding=Rounding.TOWARD_ZERO), target)
    assert (down <= values).all() and (values <= up).all()
    np.testing.assert_array_equal(down == up, down == values)
    inexact = down != up
    codes = encode(down[inexact], target).astype(np.int64)
    signed = np.where(codes & target.sign, -(codes & ~target.sign), codes)
    above = encode(up[inexact], target).astype(np.int64)
    signed_above = np.where(above & target.sign, -(above & ~target.sign), above)
    np.testing.assert_array_equal(signed_above - signed, 1)  # neighbours, -0 and +0 the same
    same(zero, np.where(np.signbit(values), up, down))


@pytest.mark.parametrize(
    ("target", "rounding", "overflow", "expected"),
    [
        (F16, Rounding.NEAREST_EVEN, Overflow.INFINITY, [0x7C00, 0xFC00]),
        (F16, Rounding.TOWARD_ZERO, Overflow.INFINITY, [0x7BFF, 0xFBFF]),
        (F16, Rounding.UP, Overflow.INFINITY, [0x7C00, 0xFBFF]),
        (F16, Rounding.DOWN, Overflow.INFINITY, [0x7BFF, 0xFC00]),
        (F16, Rounding.NEAREST_EVEN, Overflow.SATURATE, [0x7BFF, 0xFBFF]),
        (E4M3, Rounding.NEAREST_EVEN, Overflow.INFINITY, [0x7F, 0xFF]),
        (E4M3, Rounding.NEAREST_EVEN, Overflow.SATURATE, [0x7E, 0xFE]),
        (E5M2, Rounding.NEAREST_EVEN, Overflow.INFINITY, [0x7C, 0xFC]),
        (E5M2, Rounding.NEAREST_EVEN, Overflow.SATURATE, [0x7B, 0xFB]),
        (E4M3FNUZ, Rounding.NEAREST_EVEN, Overflow.INFINITY, [0x80, 0x80]),
        (E4M3FNUZ, Rounding.NEAREST_EVEN, Overflow.SATURATE, [0x7F, 0xFF]),
        (E5M2FNUZ, Rounding.NEAREST_EVEN, Overflow.SATURATE, [0x7F, 0xFF]),
        (E2M1, Rounding.NEAREST_EVEN, Overflow.INFINITY, [0x7, 0xF]),
    ],
)
def test_overflow(
    target: FloatFormat, rounding: Rounding, overflow: Overflow, expected: list[int]
) -> None:
    values = np.array([1e30, -1e30], np.float32)
    actual = encode(values, target, rounding=rounding, overflow=overflow)
    assert actual.tolist() == expected


@pytest.mark.parametrize(
    ("target", "overflow", "expected"),
    [
        (F16, Overflow.SATURATE, [0x7C00, 0xFC00]),
        (F16, Overflow.SATURATE_ALL, [0x7BFF, 0xFBFF]),
        (E4M3, Overflow.SATURATE, [0x7F, 0xFF]),
        (E4M3, Overflow.SATURATE_ALL, [0x7E, 0xFE]),
        (E5M2, Overflow.SATURATE, [0x7C, 0xFC]),
        (E4M3FNUZ, Overflow.SATURATE, [0x80, 0x80]),
        (E4M3FNUZ, Overflow.SATURATE_ALL, [0x7F, 0xFF]),
        (E2M3, Overflow.SATURATE, [0x1F, 0x3F]),
    ],
)
def test_infinities(target: FloatFormat, overflow: Overflow, expected: list[int]) -> None:
    values = np.array([np.inf, -np.inf], np.float32)
    assert encode(values, target, overflow=overflow).tolist() == expected


@pytest.mark.parametrize("target", SIGNED, ids=lambda f: f.name)
def test_denormals_are_flushed_on_request(target: FloatFormat) -> None:
    codes = codes_of(target)
    denormal = (codes >> target.mantissa_bits) & ((1 << target.exponent_bits) - 1) == 0
    if target.nan is not None:
        denormal &= codes != target.nan
    flushed = decode(codes, target, flush_input=True)
    kept = decode(codes, target)
    same(flushed, np.where(denormal, np.copysign(0, kept), kept).astype(np.float32))
    out = encode(kept, target, flush_output=True)
    assert (decode(out[denormal], target) == 0).all()
    finite = ~denormal & np.isfinite(kept)
    np.testing.assert_array_equal(out[finite], codes[finite])


def test_denormal_inputs_are_flushed_on_request() -> None:
    values = np.array([1e-39, -1e-39, 1.5], np.float32)
    assert encode(values, BF16, flush_input=True).tolist() == [0, 0x8000, 0x3FC0]
    assert encode(values, BF16).tolist()[0] != 0


@pytest.mark.parametrize("rounding", Rounding)
def test_float64_to_float32(rounding: Rounding) -> None:
    random = np.random.default_rng(3)
    values = random.standard_normal(4000) * 10.0 ** random.integers(-44, 38, 4000)
    nearest = values.astype(np.float32)
    actual = encode(values, F32, rounding=rounding).view(np.float32)
    if rounding is Rounding.NEAREST_EVEN:
        expected = nearest
    else:
        up = np.where(nearest < values, np.nextafter(nearest, np.float32(np.inf)), nearest)
        down = np.where(nearest > values, np.nextafter(nearest, np.float32(-np.inf)), nearest)
        if rounding is Rounding.TOWARD_ZERO:
            expected = np.where(values > 0, down, up)
        else:
            expected = up if rounding is Rounding.UP else down
    same(actual, expected.astype(np.float32))


def test_nan_keeps_sign_and_payload() -> None:
    bits = np.array([0x7F800001, 0xFFC02000, 0x7FA00000], np.uint32)
    assert encode(bits.view(np.float32), F16).tolist() == [0x7E00, 0xFE01, 0x7F00]
    assert encode(bits.view(np.float32), BF16).tolist() == [0x7FC0, 0xFFC0, 0x7FE0]
    assert encode(bits.view(np.float32), E4M3).tolist() == [0x7F, 0xFF, 0x7F]


def test_scale_is_the_exponent_rounded_down() -> None:
    values = np.array([1.0, 1.99, 2.0, -3.0, 0.0, np.inf, np.nan, 2.0**-130], np.float64)
    assert encode(values, E8M0).tolist() == [127, 127, 128, 128, 0, 254, 255, 0]


def test_shape_and_type_are_kept() -> None:
    values = np.ones((2, 3, 5), np.float32)[:, ::2, ::3]
    for target in FORMATS.values():
        assert encode(values, target).shape == values.shape
        assert encode(values, target).dtype == target.storage
        assert (decode(encode(values, target), target) == 1).all()
    assert encode(np.zeros((0, 4), np.float32), F16).shape == (0, 4)


def test_integers_are_refused() -> None:
    with pytest.raises(UsageError, match="int64"):
        encode(np.array([1]), F16)
