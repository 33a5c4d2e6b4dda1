"""Values and functions of the pseudo-code by which AMD's ISA documents define instructions.

Exact, slow, and written from the notation alone, to compare the emulator with. NaN has no payload
here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
from emulator_machine import fma, rounded

FORMS = {16: (11, -14, 15), 32: (24, -126, 127), 64: (53, -1022, 1023)}
_NUMPY = {("f", 16): np.float16, ("f", 32): np.float32, ("f", 64): np.float64,
          ("bf", 16): ml_dtypes.bfloat16, ("fp", 8): ml_dtypes.float8_e4m3fn,
          ("bf8", 8): ml_dtypes.float8_e5m2}  # fmt: skip


class Unknown(Exception):
    """Notation or a function that this interpreter does not have."""


class Value:
    """kind: "u", "i", "b" (bits), "f", "bf", "fp", or "n" for an integer without a width."""

    __slots__ = ("bits", "kind", "number")

    def __init__(self, kind: str, bits: int, number: Any) -> None:
        if kind in ("u", "b"):
            number &= (1 << bits) - 1
        elif kind == "i":
            number = ((number & (1 << bits) - 1) ^ 1 << bits - 1) - (1 << bits - 1)
        self.kind, self.bits, self.number = kind, bits, number

    @property
    def real(self) -> bool:
        return self.kind in ("f", "bf", "fp", "bf8")

    def raw(self) -> int:
        """The value's bits."""
        if not self.real:
            return self.number & ((1 << (self.bits or 128)) - 1)
        kind = _NUMPY[self.kind, self.bits]
        with np.errstate(all="ignore"):
            return int(np.array(self.number, np.float64).astype(kind).view(f"u{self.bits // 8}"))

    def typed(self, kind: str, bits: int) -> Value:
        """The same bits under another type."""
        if self.kind == kind and self.bits == bits:
            return self
        raw = self.raw()
        if kind in ("u", "i", "b"):
            return Value(kind, bits, self.number if self.kind == kind == "i" else raw)
        if (kind, bits) not in _NUMPY:
            raise Unknown(f"type {kind}{bits}")
        stored = np.array(raw & (1 << bits) - 1, f"u{bits // 8}").view(_NUMPY[kind, bits])
        return Value(kind, bits, float(stored))

    def cast(self, kind: str, bits: int) -> Value:
        """The value converted; an integer taken for a float is its bits."""
        if self.kind == "power":
            return self
        if kind in ("f", "bf"):
            if not self.real:
                return Value("b", bits, self.number).typed(kind, bits)
            return Value(kind, bits, round_to(self.number, kind, bits))
        if self.real and kind in ("b", "u"):
            return Value(kind, bits, self.raw())
        return Value(kind, bits, int(self.number))


def round_to(number: Any, kind: str, bits: int, toward_zero: bool = False) -> float:
    """The nearest number of a type, ties to even."""
    if isinstance(number, float):
        if math.isnan(number) or math.isinf(number) or number == 0:
            return number
        if bits == 64:
            return number
        number = Fraction(number)
    if abs(number) > Fraction(2) ** 1100:
        return math.inf if number > 0 else -math.inf
    digits, least, top = FORMS[bits] if kind == "f" else (8, -126, 127)
    if not toward_zero:
        return rounded(number, digits=digits, least=least, top=top)
    if abs(number) >= 65504:
        return 65504.0 if number > 0 else -65504.0
    near = rounded(number, digits=digits, least=least, top=top)
    if abs(Fraction(near)) > abs(number):
        near = float(np.nextafter(np.float16(near), np.float16(0)))
    return near


def _common(a: Value, b: Value) -> tuple[str, int]:
    """The type in which two integers meet, as in C: at least 32 bits."""
    if a.kind == "n" and b.kind == "n":
        return "n", 0
    if a.kind == "n" or b.kind == "n":
        known = b if a.kind == "n" else a
        return ("i" if known.kind == "i" else "u"), max(32, known.bits)
    return ("i" if a.kind == b.kind == "i" else "u"), max(32, a.bits, b.bits)


def arithmetic(operator: str, a: Value, b: Value) -> Value:
    if operator in ("<<", ">>"):
        bits = max(32, a.bits) if a.kind != "n" else 0
        shifted = a.number << b.number if operator == "<<" else a.number >> b.number
        return Value(a.kind if a.kind != "b" else "u", bits, shifted)
    if operator == "**" and a.real:
        return Value("power", a.bits, b.number)
    if b.kind == "power":
        return FUNCTIONS["ldexp"](a, b)
    if a.kind == "power":
        return FUNCTIONS["ldexp"](b, a)
    if a.real or b.real:
        one = a if a.real else b
        kind = "f" if one.kind in ("fp", "bf8") else one.kind
        bits = max(x.bits for x in (a, b) if x.real)
        return Value(kind, bits, _float(operator, float(a.number), float(b.number), kind, bits))
    kind, bits = _common(a, b)
    x, y = a.number, b.number
    if operator == "**":
        raise Unknown("a power of integers")
    done = {"+": x + y, "-": x - y, "*": x * y, "&": x & y, "|": x | y, "^": x ^ y}
    if operator not in done:
        raise Unknown(operator)
    return Value(kind, bits, done[operator])


def _float(operator: str, a: float, b: float, kind: str, bits: int) -> float:
    special = not (math.isfinite(a) and math.isfinite(b))
    with np.errstate(all="ignore"):
        if operator == "/":
            if special or b == 0 or a == 0:
                return float(np.float64(a) / np.float64(b))
            return round_to(Fraction(a) / Fraction(b), kind, bits)
        if operator == "**":
            raise Unknown("a power")
        simple = {"+": np.add, "-": np.subtract, "*": np.multiply}[operator]
        if special or a == 0 or b == 0:
            return float(simple(np.float64(a), np.float64(b)))
    exact = {"+": Fraction(a) + Fraction(b), "-": Fraction(a) - Fraction(b)}.get(operator)
    exact = Fraction(a) * Fraction(b) if exact is None else exact
    if exact == 0:
        return 0.0  # of two numbers that cancel
    return math.copysign(round_to(exact, kind, bits), 1 if exact > 0 else -1)


def compare(operator: str, a: Value, b: Value) -> Value:
    x, y = a.number, b.number
    if a.kind == "denormal" or b.kind == "denormal":
        one = a if b.kind == "denormal" else b
        tiny = 2.0 ** FORMS[one.bits][1]
        return Value("u", 1, int(0 < abs(one.number) < tiny))
    found = {"==": x == y, "!=": x != y, "<>": x < y or x > y, "<": x < y, "<=": x <= y,
             ">": x > y, ">=": x >= y}[operator]  # fmt: skip
    return Value("u", 1, int(found))


# -- functions ------------------------------------------------------------------------------------


def _to_integer(kind: str, bits: int) -> Callable[..., Value]:
    low, high = (0, 2**bits - 1) if kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)

    def run(a: Value) -> Value:
        x = a.number
        if math.isnan(x):
            return Value(kind, bits, 0)
        return Value(kind, bits, int(max(low, min(high, math.trunc(x) if abs(x) < 1e300 else x))))

    return run


def _convert(kind: str, bits: int) -> Callable[..., Value]:
    def run(a: Value) -> Value:
        number = a.number if a.real else Fraction(a.number)
        if number == 0 and not a.real:
            return Value(kind, bits, 0.0)
        return Value(kind, bits, round_to(number, kind, bits))

    return run


def _exponent(a: Value) -> Value:
    digits, _, top = FORMS[a.bits]
    return Value("i", 32, a.raw() >> digits - 1 & 2 * top + 1)


def _fma(a: Value, b: Value, c: Value) -> Value:
    digits, least, top = FORMS[a.bits]
    done = fma(a.number, b.number, c.number, digits=digits, least=least, top=top)
    return Value("f", a.bits, done)


def _unary(function: Callable[[float], float]) -> Callable[[Value], Value]:
    def run(a: Value) -> Value:
        with np.errstate(all="ignore"):
            return Value("f", a.bits, round_to(float(function(np.float64(a.number))), "f", a.bits))

    return run


def _mantissa(a: Value) -> Value:
    return Value("f", a.bits, math.frexp(a.number)[0])


def _ldexp(a: Value, e: Value) -> Value:
    """a·2^e, rounded once."""
    if a.number == 0 or not math.isfinite(a.number):
        return a
    exact = Fraction(a.number) * Fraction(2) ** max(-3000, min(3000, int(e.number)))
    done = round_to(exact, "f", a.bits)
    return Value("f", a.bits, math.copysign(done, 1 if exact > 0 else -1))


def _norm(kind: str) -> Callable[[Value], Value]:
    most, low = (32767, -1.0) if kind == "i" else (65535, 0.0)

    def run(a: Value) -> Value:
        x = 0.0 if math.isnan(a.number) else max(low, min(1.0, a.number))
        return Value(kind, 16, round(Fraction(x) * most))

    return run


def _extend(kind: str, bits: int) -> Callable[[Value], Value]:
    return lambda a: Value(kind, bits, a.number)


def _signext_from_bit(a: Value, width: Value) -> Value:
    n = width.number
    return Value("i", a.bits, 0 if n == 0 else Value("i", n, a.number).number)


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "isNAN": lambda a: Value("u", 1, int(math.isnan(a.number))),
    "isQuietNAN": lambda a: Value("u", 1, int(math.isnan(a.number))),
    "isSignalNAN": lambda a: Value("u", 1, 0),  # no test makes one
    "cvtToQuietNAN": lambda a: a,
    "abs": lambda a: Value(a.kind, a.bits, abs(a.number)),
    "sign": lambda a: Value("u", 1, int(math.copysign(1, a.number) < 0)),
    "exponent": _exponent,
    "fma": _fma,
    "floor": _unary(np.floor), "trunc": _unary(np.trunc), "sqrt": _unary(np.sqrt),
    "sin": _unary(np.sin), "cos": _unary(np.cos), "log2": _unary(np.log2),
    "fract": _unary(lambda x: x - np.floor(x)),
    "pow": lambda a, b: _unary(lambda x: 2.0**x)(b),
    "isEven": lambda a: Value("u", 1, int(math.isfinite(a.number) and a.number % 2 == 0)),
    "signext": lambda a: Value("i", 64, a.number),
    "signext_from_bit": _signext_from_bit,
    "ldexp": _ldexp,
    "mantissa": _mantissa,
    "fp8_to_f32": lambda a: a.cast("f", 32),
    "bf8_to_f32": lambda a: a.cast("f", 32),
    "v_cvt_i16_f32": _to_integer("i", 16),
    "v_cvt_u16_f32": _to_integer("u", 16),
    "f32_to_u8": _to_integer("u", 8),
    "f16_to_snorm": _norm("i"), "f16_to_unorm": _norm("u"),
    "f32_to_snorm": _norm("i"), "f32_to_unorm": _norm("u"),
    "u32_to_u16": lambda a: Value("u", 16, min(a.number, 65535)),
    "i32_to_i16": lambda a: Value("i", 16, max(-32768, min(32767, a.number))),
    "bf16_to_f32": lambda a: Value("f", 32, a.typed("bf", 16).number),
}  # fmt: skip
for _kind, _bits in (("i", 32), ("u", 32), ("i", 16), ("u", 16)):
    for _from in (16, 32, 64):
        FUNCTIONS[f"f{_from}_to_{_kind}{_bits}"] = _to_integer(_kind, _bits)
        FUNCTIONS[f"{_kind}{_bits}_to_f{_from}"] = _convert("f", _from)
for _bits in (16, 32, 64):
    for _from in (16, 32, 64):
        FUNCTIONS[f"f{_from}_to_f{_bits}"] = _convert("f", _bits)
    FUNCTIONS[f"f{_bits}_to_bf16"] = _convert("bf", 16)
for _bits in (4, 8, 16):
    FUNCTIONS[f"u{_bits}_to_u32"] = _extend("u", 32)
    FUNCTIONS[f"i{_bits}_to_i32"] = _extend("i", 32)
