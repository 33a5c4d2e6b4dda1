"""Floating-point operations of the vector unit, on NumPy arrays of any shape.

Results are rounded once, to nearest even: an operation that float32 can't do exactly is done in
float64, and the write to the register rounds. Transcendental operations are rounded correctly,
while hardware is allowed 1 ulp. Follows the operations' pseudo-code in the "RDNA3 ISA" document.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from pumice.emulator.state import Values

_TINY = np.float32(2.0**-126)
_HALF_ULP = np.uint64(0x1000_0000)
_LOW_BITS = np.uint64(0x1FFF_FFFF)


def fma32(a: Values, b: Values, c: Values) -> Values:
    """a·b + c as float64 that rounds to the right float32.

    The product of two float32 is exact in float64. The sum is rounded, which only matters when it
    falls on the middle between two float32: there it moves towards the exact sum.
    """
    product = np.multiply(a, b, dtype=np.float64)
    total = np.asarray(np.add(product, c, dtype=np.float64))
    tie = total.view(np.uint64) & _LOW_BITS == _HALF_ULP
    if tie.any():
        part = total - product
        error = (product - (total - part)) + (c - part)
        total = np.where(tie & (error != 0), np.nextafter(total, np.copysign(np.inf, error)), total)
    return total


def _two_sum(a: Values, b: Values) -> tuple[Values, Values]:
    """The rounded sum and its error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def fma64(a: Values, b: Values, c: Values) -> Values:
    """a·b + c in float64, rounded once.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008: Dekker's product, and
    a sum of the small parts rounded to odd. Very large or small numbers take exact fractions.
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    product = a * b
    split = 134217729.0  # 2^27 + 1
    a_high = split * a - (split * a - a)
    b_high = split * b - (split * b - b)
    a_low, b_low = a - a_high, b - b_high
    low = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    upper, lower = _two_sum(c, low)
    main, rest = _two_sum(product, upper)
    small, error = _two_sum(lower, rest)
    even = np.asarray(small).view(np.uint64) & np.uint64(1) == 0
    odd = np.where((error != 0) & even, np.nextafter(small, np.copysign(np.inf, error)), small)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    result = np.where(finite & (product != 0), main + odd, product + c)
    size = np.abs(product)
    hard = finite & (a != 0) & (b != 0)
    hard &= (
        (size > 2.0**900)
        | (size < 2.0**-900)
        | (np.abs(c) > 2.0**900)
        | (np.maximum(np.abs(a), np.abs(b)) > 2.0**900)
    )
    hard |= finite & (a != 0) & (b != 0) & (c != 0) & (np.abs(c) < 2.0**-900)
    for place in zip(*np.nonzero(hard), strict=True):
        result[place] = _exact_fma(float(a[place]), float(b[place]), float(c[place]))
    return result


def _exact_fma(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    try:
        return exact.numerator / exact.denominator  # Python rounds this right
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def fma16(a: Values, b: Values, c: Values) -> Values:
    """a·b + c of float16 values: exact in float64 but for sums of very different sizes."""
    return np.add(np.multiply(a, b, dtype=np.float64), c, dtype=np.float64)


def maximum(a: Values, b: Values) -> Values:
    """The larger; the number when the other is NaN; +0 above -0."""
    r = np.fmax(a, b)
    zero = r == 0
    if np.any(zero):
        r = np.where(zero & (a == b), a + b, r)  # -0 + +0 is +0, -0 + -0 is -0
    return r


def minimum(a: Values, b: Values) -> Values:
    """The smaller; the number when the other is NaN; -0 below +0."""
    r = np.fmin(a, b)
    zero = r == 0
    if np.any(zero):
        r = np.where(zero & (a == b), -(-a + -b), r)
    return r


def maximum_ieee(a: Values, b: Values) -> Values:
    """IEEE 754-2019 maximum: NaN when either is NaN."""
    return np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), maximum(a, b))


def minimum_ieee(a: Values, b: Values) -> Values:
    """IEEE 754-2019 minimum: NaN when either is NaN."""
    return np.where(np.isnan(a) | np.isnan(b), np.float32(np.nan), minimum(a, b))


def median(a: Values, b: Values, c: Values) -> Values:
    """The middle one; the smallest when one is NaN."""
    high = maximum(maximum(a, b), c)
    middle = np.where(high == a, maximum(b, c), np.where(high == b, maximum(a, c), maximum(a, b)))
    unordered = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(unordered, minimum(minimum(a, b), c), middle)


def flush(a: Values) -> Values:
    """Denormal float32 become zeros of the same sign."""
    return np.where(np.abs(a) < _TINY, np.copysign(np.float32(0), a), a)


def _unary(fn: Any) -> Any:
    """A function of float64, on flushed float32, its result flushed: what v_exp_f32 ... do."""

    def run(a: Values) -> Values:
        return flush(fn(flush(a).astype(np.float64)).astype(np.float32))

    return run


exp2 = _unary(np.exp2)
log2 = _unary(np.log2)
reciprocal = _unary(lambda a: 1.0 / a)
reciprocal_root = _unary(lambda a: 1.0 / np.sqrt(a))


def root(a: Values) -> Values:
    return np.sqrt(a.astype(np.float64))


def sine(a: Values) -> Values:
    """sin(2πa): the hardware takes turns, not radians."""
    return np.sin(2 * np.pi * np.fmod(a.astype(np.float64), 1.0))


def cosine(a: Values) -> Values:
    return np.cos(2 * np.pi * np.fmod(a.astype(np.float64), 1.0))


def fraction(a: Values) -> Values:
    """a - floor(a), kept below 1."""
    top = np.nextafter(a.dtype.type(1), a.dtype.type(0))
    r = a - np.floor(a)
    return np.where(np.isnan(a), a, np.minimum(r, top))


def mul_dx9(a: Values, b: Values) -> Values:
    """a·b where 0 times anything is 0."""
    return np.where((a == 0) | (b == 0), np.float32(0), a * b)


def fma_dx9(a: Values, b: Values, c: Values) -> Values:
    return np.where((a == 0) | (b == 0), c, fma32(a, b, c))


def exponent(a: Values) -> Values:
    """The biased exponent of a float32 or float64, as int32."""
    if a.dtype == np.float64:
        return (a.view(np.uint64) >> np.uint64(52) & np.uint64(0x7FF)).astype(np.int32)
    return (a.view(np.uint32) >> np.uint32(23) & np.uint32(0xFF)).astype(np.int32)


def frexp_exponent(a: Values) -> Values:
    return np.where(np.isfinite(a), np.frexp(a)[1], 0).astype(np.int32)


def frexp_mantissa(a: Values) -> Values:
    return np.where(np.isfinite(a), np.frexp(a)[0], a)


def ldexp(a: Values, e: Values) -> Values:
    """a·2^e, rounded once (through float64 for float32, which holds every step exactly)."""
    limit = 300 if a.dtype == np.float32 else 2200
    e = np.clip(e, -limit, limit)
    if a.dtype == np.float32:
        return np.ldexp(a.astype(np.float64), e)
    return np.ldexp(a, e)


def div_scale(a: Values, b: Values, c: Values) -> tuple[Values, Values]:
    """(value, VCC): v_div_scale of value, denominator, numerator."""
    wide = a.dtype == np.float64
    tiny = 2.0**-1022 if wide else 2.0**-126
    step, near, small = (128, 768, 53) if wide else (64, 96, 23)
    a, b, c = np.broadcast_arrays(a, b, c)

    def denormal(x: Values, least: float) -> Values:
        return (x != 0) & (np.abs(x) < least)

    b64, c64 = b.astype(np.float64), c.astype(np.float64)
    # The document writes f64 here for float32 too, but what must be avoided is a reciprocal that
    # v_rcp_f32 would flush.
    inverse = denormal(1.0 / b64, tiny)
    quotient = denormal((c / b).astype(a.dtype), tiny)
    up, down = np.ldexp(a, step), np.ldexp(a, -step)
    same_den = a.view(np.uint64 if wide else np.uint32) == b.view(np.uint64 if wide else np.uint32)
    same_num = a.view(np.uint64 if wide else np.uint32) == c.view(np.uint64 if wide else np.uint32)
    cases = [
        (c64 == 0) | (b64 == 0),
        exponent(c) - exponent(b) >= near,
        denormal(b, tiny),
        inverse & quotient,
        inverse,
        quotient,
        exponent(c) <= small,
    ]
    values = [
        np.full_like(a, np.nan),
        np.where(same_den, up, a),
        up,
        np.where(same_den, down, a),  # the document says up, which would make it infinite
        down,
        np.where(same_num, up, a),
        up,
    ]
    no, yes = np.zeros(a.shape, bool), np.ones(a.shape, bool)
    flags = [no, yes, no, yes, no, yes, no]
    return np.select(cases, values, a), np.select(cases, flags, no)


def div_fixup(a: Values, b: Values, c: Values) -> Values:
    """v_div_fixup of quotient, denominator, numerator: special cases put right."""
    kind = np.result_type(a, b, c)
    sign = np.signbit(b) ^ np.signbit(c)
    signed = np.where(sign, -np.abs(a), np.abs(a))
    infinite = np.where(sign, -np.inf, np.inf)
    zero = np.where(sign, -0.0, 0.0)
    lowest = -1075 if kind == np.float64 else -150  # below: the quotient is 0
    both_zero = (b == 0) & (c == 0)
    both_inf = np.isinf(b) & np.isinf(c)
    result = np.select(
        [
            np.isnan(c),
            np.isnan(b),
            both_zero | both_inf,
            (b == 0) | np.isinf(c),
            np.isinf(b) | (c == 0) | (exponent(c) - exponent(b) < lowest),
            ~np.isfinite(a),  # the document tests b's exponent, which was handled before
        ],
        [c, b, np.full(sign.shape, np.nan), infinite, zero, infinite],
        signed,
    )
    return result.astype(kind)


def classify(a: Values, wanted: Values) -> Values:
    """v_cmp_class: whether a's class (NaN, infinity, normal, denormal, zero; sign) is wanted."""
    if a.dtype == np.float64:
        bits, high = a.view(np.uint64), np.uint64(52)
        quiet = bits >> np.uint64(51) & np.uint64(1) == 1
        top = bits >> high & np.uint64(0x7FF)
        fraction_zero = bits & np.uint64((1 << 52) - 1) == 0
        most = 0x7FF
    else:
        bits32 = a.view(np.uint32)
        quiet = bits32 >> np.uint32(22) & np.uint32(1) == 1
        top = bits32 >> np.uint32(23) & np.uint32(0xFF)
        fraction_zero = bits32 & np.uint32((1 << 23) - 1) == 0
        most = 0xFF
    negative = np.signbit(a)
    bit = np.select(
        [
            (top == most) & ~fraction_zero & ~quiet,
            (top == most) & ~fraction_zero,
            top == most,
            top > 0,
            ~fraction_zero,
        ],
        [
            np.full(a.shape, 0),
            np.full(a.shape, 1),
            np.where(negative, 2, 9),
            np.where(negative, 3, 8),
            np.where(negative, 4, 7),
        ],
        np.where(negative, 5, 6),
    )
    chosen: Values = wanted.astype(np.int64) >> bit & 1 == 1
    return chosen


def to_integer(a: Values, low: int, high: int, kind: Any) -> Values:
    """Truncation with saturation; NaN becomes 0."""
    x = np.clip(np.trunc(a.astype(np.float64)), low, high)
    return np.where(np.isnan(x), 0.0, x).astype(kind)


def to_i32(a: Values) -> Values:
    return to_integer(a, -(2**31), 2**31 - 1, np.int32)


def to_u32(a: Values) -> Values:
    return to_integer(a, 0, 2**32 - 1, np.int64).astype(np.uint32)


def half_toward_zero(a: Values) -> Values:
    """float32 → float16 bits (uint32), rounded towards zero, which never makes an infinity."""
    near = np.asarray(a.astype(np.float16))
    beyond = np.abs(near.astype(np.float32)) > np.abs(a)
    return near.view(np.uint16).astype(np.uint32) - beyond.astype(np.uint32)


def half_bits(a: Values) -> Values:
    """float32 or float64 → float16 bits as uint32, to nearest even."""
    return np.asarray(a.astype(np.float16)).view(np.uint16).astype(np.uint32)


def brain_bits(a: Values) -> Values:
    """float32 → bfloat16 bits as uint32, to nearest even; NaN stays NaN."""
    bits = np.asarray(a.astype(np.float32)).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    quiet = bits >> np.uint32(16) | np.uint32(0x40)
    return np.where(np.isnan(a), quiet, rounded >> np.uint32(16)).astype(np.uint32)


def snorm16(a: Values) -> Values:
    x = np.rint(np.clip(np.where(np.isnan(a), 0, a), -1, 1).astype(np.float64) * 32767.0)
    return x.astype(np.int16).view(np.uint16).astype(np.uint32)


def unorm16(a: Values) -> Values:
    x = np.rint(np.clip(np.where(np.isnan(a), 0, a), 0, 1).astype(np.float64) * 65535.0)
    return x.astype(np.uint32)
