"""Elementary functions as polynomials: a call into libm would be made lane by lane.

Coefficients: exp2 is a minimax fit on [−½, ½] (relative error 1.1e-7 in float32); sine and cosine
are those of Cephes (S. L. Moshier, single precision) on [−π/4, π/4].
"""

from __future__ import annotations

import math
from typing import Any

import tvm.tirx as tir
from tvm.tirx.script.builder import ir as T

from pumice.operators.tir.vector import let, reinterpret, splat, splat_int

# Adding 1.5·2²³ leaves round-half-even(x) in the low bits of the float's pattern, for |x| < 2²².
ROUND = 12582912.0
ROUND_BITS = 0x4B400000

# 2^f = 1 + f·(…), highest power first.
_EXP2 = (
    1.326472731307149e-3, 9.671512991189957e-3, 5.550733581185341e-2, 0.24022242426872253,
    0.6931470036506653, 1.0,
)  # fmt: skip


def exp2(x: Any, lanes: int) -> Any:
    """2ˣ in float32; exactly 0 for x ≤ −126.5, no overflow handling above 127."""
    # The exponent's bias rides on the rounding constant: the low bits of `shifted` are n + 127.
    x = let(T.max(x, splat(-127.0, lanes)))
    magic = splat(ROUND + 127.0, lanes)
    # A product with 1 keeps TVM from simplifying (x + magic) − magic to x; LLVM drops the
    # multiplication.
    shifted = let(T.fma(x, splat(1.0, lanes), magic))
    f = let(x - (shifted - magic))
    power = reinterpret(
        T.shift_left(reinterpret(shifted, "int32", lanes), splat_int(23, lanes)), "float32", lanes
    )
    p = splat(_EXP2[0], lanes)
    for c in _EXP2[1:]:
        p = T.fma(p, f, splat(c, lanes))
    return let(p * power)


def exp(x: Any, lanes: int) -> Any:
    """eˣ in float32 for x ≤ 88, through exp2; relative error grows with |x| as that of x·log2(e)
    does."""
    return exp2(x * splat(math.log2(math.e), lanes), lanes)


def sigmoid(x: Any, lanes: int) -> Any:
    """1 / (1 + e⁻ˣ)."""
    one = splat(1.0, lanes)
    return one / (one + exp(T.min(splat(0.0, lanes) - x, splat(88.0, lanes)), lanes))


def tanh(x: Any, lanes: int) -> Any:
    """(1 − e^−2|x|) / (1 + e^−2|x|) with the sign of x; absolute error 1e-7."""
    bits = let(reinterpret(x, "int32", lanes))
    magnitude = reinterpret(bits & splat_int(0x7FFFFFFF, lanes), "float32", lanes)
    e = exp(magnitude * splat(-2.0, lanes), lanes)
    one = splat(1.0, lanes)
    value = reinterpret((one - e) / (one + e), "int32", lanes)
    return reinterpret(value | (bits & splat_int(-0x80000000, lanes)), "float32", lanes)


# π/2 in three float32 parts; fused multiply-add makes the first subtraction exact.
_HALF_PI = (1.57079637050628662109375, -4.37113900018624283e-8, -1.71512489e-15)
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def sincos(angle: Any, lanes: int) -> tuple[Any, Any]:
    """(sin, cos) of 0 ≤ angle < 2²² in float32; absolute error below 2e-7 for angles up to 2·10⁵.

    Cody-Waite reduction by multiples of π/2, then a polynomial a quadrant.
    """
    magic = splat(ROUND, lanes)
    shifted = let(T.fma(angle, splat(2.0 / math.pi, lanes), magic))
    count = let(splat(0.0, lanes) - (shifted - magic))
    r = angle
    for part in _HALF_PI:
        r = let(T.fma(count, splat(part, lanes), r))
    r2 = let(r * r)
    s = splat(_SIN[0], lanes)
    for c in _SIN[1:]:
        s = T.fma(s, r2, splat(c, lanes))
    sine = let(T.fma(s * r2, r, r))
    c_ = splat(_COS[0], lanes)
    for c in _COS[1:]:
        c_ = T.fma(c_, r2, splat(c, lanes))
    cosine = let(T.fma(c_ * r2, r2, T.fma(r2, splat(-0.5, lanes), splat(1.0, lanes))))
    quadrant = let(reinterpret(shifted, "int32", lanes) - splat_int(ROUND_BITS, lanes))
    one, two, sign_shift = (splat_int(v, lanes) for v in (1, 2, 30))
    odd = tir.EQ(quadrant & one, one)

    def signed(value: Any, bit: Any) -> Any:
        # `bit` is 0 or 2; moved to the sign's place it flips the value's sign.
        flip = T.shift_left(bit, sign_shift)
        return reinterpret(reinterpret(value, "int32", lanes) ^ flip, "float32", lanes)

    sin_out = signed(tir.Select(odd, cosine, sine), quadrant & two)
    cos_out = signed(tir.Select(odd, sine, cosine), (quadrant + one) & two)
    return let(sin_out), let(cos_out)
