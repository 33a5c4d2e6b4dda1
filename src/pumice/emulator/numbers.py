"""Bit-exact conversions between float32/float64 and the small floating-point formats of AMD's GPUs.

    format       bits  exponent  mantissa  bias  largest   infinity  NaN
    f32           32      8         23      127  3.4e38      yes     all exponent bits, mantissa ≠ 0
    f16           16      5         10       15   65504      yes     the same
    bf16          16      8          7      127  3.4e38      yes     the same
    e5m2 (bf8)     8      5          2       15   57344      yes     the same
    e4m3 (fp8)     8      4          3        7     448      no      S.1111.111
    e4m3fnuz       8      4          3        8     240      no      0x80 (there is no -0)
    e5m2fnuz       8      5          2       16   57344      no      0x80
    e3m2, e2m3     6     3, 2      2, 3     3, 1  28, 7.5    no      no
    e2m1           4      2          1        1       6      no      no
    e8m0           8      8          0      127  2^127       no      0xff (a scale: no sign or zero)

OCP's 8-bit formats: "OFP8" 1.0; 6, 4 bits and e8m0: "Microscaling Formats" 1.0; FNUZ: AMD's CDNA3
ISA document. gfx942 has the FNUZ pair behind FP8/BF8, gfx950 and gfx12 have OCP's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from pumice.errors import UsageError

Array = npt.NDArray[Any]


class Rounding(IntEnum):
    """MODE.round of the ISA documents, by its code there."""

    NEAREST_EVEN = 0
    UP = 1
    DOWN = 2
    TOWARD_ZERO = 3


class Overflow(Enum):
    """What a finite value beyond the largest becomes.

    INFINITY: what IEEE 754 says for the rounding mode, NaN where a format has no infinity (the
    hardware's way). SATURATE: the largest value of that sign, true infinities stay
    (MODE.FP16_OVFL). SATURATE_ALL: infinities too (the clamp of FP8 conversions). In formats
    without NaN and infinity all three saturate, and NaN becomes the largest value.
    """

    INFINITY = "infinity"
    SATURATE = "saturate"
    SATURATE_ALL = "saturate_all"


@dataclass(frozen=True)
class FloatFormat:
    """A floating-point format. specials: "ieee" (infinities and NaNs), "fn" (one NaN, all ones),
    "fnuz" (one NaN, the code of -0), "none", "scale" (e8m0).
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: str

    @property
    def bits(self) -> int:
        return self.exponent_bits + self.mantissa_bits + (self.specials != "scale")

    @property
    def storage(self) -> type[np.unsignedinteger[Any]]:
        """The unsigned type that holds a code."""
        return np.uint8 if self.bits <= 8 else np.uint16 if self.bits <= 16 else np.uint32

    @property
    def sign(self) -> int:
        """The sign's bit (0 in e8m0)."""
        return 0 if self.specials == "scale" else 1 << (self.bits - 1)

    @property
    def infinity(self) -> int | None:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits if self.ieee else None

    @property
    def ieee(self) -> bool:
        return self.specials == "ieee"

    @property
    def nan(self) -> int | None:
        """The canonical quiet NaN."""
        if self.ieee:
            return (((1 << self.exponent_bits) - 1) << self.mantissa_bits) | (
                1 << (self.mantissa_bits - 1)
            )
        if self.specials == "fnuz":
            return self.sign
        return (
            (1 << (self.bits - (self.sign != 0))) - 1 if self.specials in ("fn", "scale") else None
        )

    @property
    def largest(self) -> int:
        """The code of the largest finite value."""
        if self.infinity is not None:
            return self.infinity - 1
        return ((1 << (self.bits - (self.sign != 0))) - 1) - (self.specials in ("fn", "scale"))


F32 = FloatFormat("f32", 8, 23, 127, "ieee")
F16 = FloatFormat("f16", 5, 10, 15, "ieee")
BF16 = FloatFormat("bf16", 8, 7, 127, "ieee")
E5M2 = FloatFormat("e5m2", 5, 2, 15, "ieee")
E4M3 = FloatFormat("e4m3", 4, 3, 7, "fn")
E4M3FNUZ = FloatFormat("e4m3fnuz", 4, 3, 8, "fnuz")
E5M2FNUZ = FloatFormat("e5m2fnuz", 5, 2, 16, "fnuz")
E3M2 = FloatFormat("e3m2", 3, 2, 3, "none")
E2M3 = FloatFormat("e2m3", 2, 3, 1, "none")
E2M1 = FloatFormat("e2m1", 2, 1, 1, "none")
E8M0 = FloatFormat("e8m0", 8, 0, 127, "scale")

FORMATS: Mapping[str, FloatFormat] = MappingProxyType(
    {f.name: f for f in (F32, F16, BF16, E5M2, E4M3, E4M3FNUZ, E5M2FNUZ, E3M2, E2M3, E2M1, E8M0)}
)


def decode(
    codes: Array, source: FloatFormat, *, flush_input: bool = False
) -> npt.NDArray[np.float32]:
    """float32 values of codes (unsigned integers of any shape): exact, as every format fits.

    A NaN keeps its sign and payload and becomes quiet, but for bf16 → f32, which is a shift.
    flush_input: denormal codes count as zeros of their sign.
    """
    if source is F32:
        bits = np.ascontiguousarray(codes, np.uint32)
        return _flush(bits.view(np.float32)) if flush_input else bits.view(np.float32)
    if source is BF16 and not flush_input:
        return (np.asarray(codes).astype(np.uint32) << 16).view(np.float32)
    return table(source, flush_input=flush_input).take(np.asarray(codes))


@lru_cache(maxsize=64)
def table(
    source: FloatFormat, *, flush_input: bool = False, dtype: str = "float32"
) -> npt.NDArray[Any]:
    """Values of all codes of a format of at most 16 bits, read-only, by code."""
    if source.bits > 16:
        raise UsageError(
            f"a table of {source.bits}-bit codes was asked for; allowed are at most 16 bits"
        )
    codes = np.arange(1 << source.bits, dtype=np.uint32)
    mantissa = codes & ((1 << source.mantissa_bits) - 1)
    exponent = (codes >> source.mantissa_bits) & ((1 << source.exponent_bits) - 1)
    negative = (codes & source.sign) != 0
    if source.specials == "scale":
        value = np.ldexp(1.0, exponent.astype(np.int32) - source.bias)
    else:
        implicit = np.where(exponent > 0, 1 << source.mantissa_bits, 0)
        power = np.maximum(exponent, 1).astype(np.int32) - source.bias - source.mantissa_bits
        value = np.ldexp((implicit + mantissa).astype(np.float64), power)
        if flush_input:
            value = np.where(exponent == 0, 0.0, value)
    with np.errstate(over="ignore"):  # codes of infinity and NaN, replaced below
        bits = np.where(negative, -value, value).astype(np.float32).view(np.uint32)
    if source.ieee:
        special = exponent == (1 << source.exponent_bits) - 1
        payload = mantissa << (23 - source.mantissa_bits)
        quiet = 0 if source is BF16 else 0x400000
        payload = np.where(mantissa != 0, payload | quiet, payload)
        bits = np.where(special, (negative.astype(np.uint32) << 31) | 0x7F800000 | payload, bits)
    elif source.nan is not None:
        nan = codes == source.nan
        if source.specials == "fn":
            nan |= codes == source.nan | source.sign
        bits = np.where(nan, 0x7FC00000, bits)
    with np.errstate(invalid="ignore"):
        values: Array = bits.astype(np.uint32).view(np.float32).astype(dtype)
    values.flags.writeable = False
    return values


def encode(
    values: Array,
    target: FloatFormat,
    *,
    rounding: Rounding = Rounding.NEAREST_EVEN,
    overflow: Overflow = Overflow.INFINITY,
    flush_input: bool = False,
    flush_output: bool = False,
) -> Array:
    """Codes (`target.storage`) of float32 or float64 values of any shape, rounded once.

    flush_input: float32/float64 denormals count as zeros of their sign. flush_output: results below
    the smallest normal become zeros of their sign. A NaN of an IEEE format keeps sign and the top
    of its payload, quiet; elsewhere it is the format's NaN (of its sign, if it has two). e8m0: the
    value's exponent rounded down (its sign is dropped), as in the microscaling specification.
    """
    values = np.asarray(values)
    if values.dtype not in (np.float32, np.float64):
        raise UsageError(f"values of {values.dtype} cannot be encoded; allowed: float32, float64")
    if target.specials == "scale":
        return _encode_scale(values)
    if flush_input:
        values = _flush(values)
    plain = rounding is Rounding.NEAREST_EVEN and overflow is Overflow.INFINITY
    if plain and not flush_output:
        if target is BF16 and values.dtype == np.float32:
            return _bf16_nearest(values)
        if target is F16:
            return _f16_nearest(values)
    return _encode(values, target, rounding, overflow, flush_output)


def _flush(values: Array) -> Array:
    """Denormals of float32 or float64 as zeros of their sign."""
    smallest = np.finfo(values.dtype).tiny
    flushed: Array = np.where(np.abs(values) < smallest, np.copysign(0, values), values)
    return flushed.astype(values.dtype)


def _bf16_nearest(values: Array) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32).reshape(values.shape)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    if nan.any():
        rounded = np.where(nan, (bits >> 16) | 0x40, rounded)
    return rounded.astype(np.uint16)


def _f16_nearest(values: Array) -> Array:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        codes = np.ascontiguousarray(values).astype(np.float16).view(np.uint16)
    codes = codes.reshape(values.shape)
    nan = np.isnan(values)
    if nan.any():  # NumPy's NaNs may be signaling, and their payload another
        word, drop = (np.uint32, 13) if values.dtype == np.float32 else (np.uint64, 42)
        bits = np.ascontiguousarray(values).view(word).reshape(values.shape)
        payload = (bits >> word(drop)).astype(np.uint16) & np.uint16(0x3FF)
        codes = np.where(nan, codes & np.uint16(0x8000) | np.uint16(0x7E00) | payload, codes)
    return codes


def _encode(
    values: Array,
    target: FloatFormat,
    rounding: Rounding,
    overflow: Overflow,
    flush_output: bool,
) -> Array:
    """The general way: the significand as a 53-bit integer, shifted to the target's grid."""
    with np.errstate(invalid="ignore"):
        wide = values.astype(np.float64)
    bits = np.ascontiguousarray(wide).view(np.uint64).reshape(values.shape).astype(np.int64)
    negative = bits < 0
    fraction = bits & ((1 << 52) - 1)
    field = (bits >> 52) & 0x7FF
    significand = np.where(field > 0, fraction | (1 << 52), fraction)
    exponent = np.maximum(field, 1) - 1023  # of the significand's top bit, 2^52

    lowest = 1 - target.bias
    grid = np.maximum(exponent, lowest)  # results are multiples of 2^(grid - mantissa_bits)
    shift = np.minimum(52 - target.mantissa_bits + grid - exponent, 62)
    kept = significand >> shift
    rest = significand - (kept << shift)
    half = np.int64(1) << (shift - 1)
    if rounding is Rounding.NEAREST_EVEN:
        up = (rest > half) | ((rest == half) & ((kept & 1) == 1))
    elif rounding is Rounding.TOWARD_ZERO:
        up = np.zeros(values.shape, bool)
    else:
        up = (rest > 0) & (negative == (rounding is Rounding.DOWN))
    kept = kept + up
    # kept may have reached the next power of two: the sum below carries into the exponent.
    code = np.where(
        kept >> target.mantissa_bits == 0,
        0 if flush_output else kept,
        ((grid + target.bias - 1) << target.mantissa_bits) + kept,
    )

    infinite = (field == 0x7FF) & (fraction == 0)
    nan = (field == 0x7FF) & (fraction != 0)
    beyond = (code > target.largest) & ~infinite & ~nan
    code = np.where(beyond, _overflowed(target, rounding, overflow, negative), code)
    quiet = target.largest if target.nan is None else target.nan
    beyond_all = quiet if target.infinity is None else target.infinity
    if overflow is Overflow.SATURATE_ALL:
        beyond_all = target.largest
    code = np.where(infinite, beyond_all, code)
    sign = np.where(negative, target.sign, 0)
    signed = code | sign
    if target.specials == "fnuz":  # no -0: its code is NaN
        signed = np.where(code == 0, 0, signed)
        sign = np.zeros_like(sign)
    payload = fraction >> (52 - target.mantissa_bits) if target.ieee else 0
    signed = np.where(nan, sign | quiet | payload, signed)
    return signed.astype(target.storage)


def _overflowed(
    target: FloatFormat, rounding: Rounding, overflow: Overflow, negative: Array
) -> Array | int:
    """The magnitude's code for finite values beyond the largest."""
    if overflow is not Overflow.INFINITY or target.nan is None:
        return target.largest
    beyond = target.nan if target.infinity is None else target.infinity
    if rounding is Rounding.NEAREST_EVEN:
        return beyond
    if rounding is Rounding.TOWARD_ZERO:
        return target.largest
    away = negative == (rounding is Rounding.DOWN)
    return np.where(away, beyond, target.largest)


def _encode_scale(values: Array) -> Array:
    magnitude = np.abs(values.astype(np.float64))
    _, exponent = np.frexp(np.where(np.isfinite(magnitude), magnitude, 1.0))
    code = np.clip(exponent - 1 + E8M0.bias, 0, E8M0.largest)
    code = np.where(np.isinf(magnitude), E8M0.largest, np.where(magnitude == 0, 0, code))
    return np.where(np.isnan(magnitude), 0xFF, code).astype(np.uint8)
