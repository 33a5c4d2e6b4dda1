"""Floating-point instructions on edge values, against exact rational arithmetic."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from emulator_machine import ARCHS, EDGES, fma, machine_for, rounded, same_bits

PAIRS = np.array(list(itertools.product(EDGES, EDGES)), np.float32)
A, B = PAIRS[:, 0].copy(), PAIRS[:, 1].copy()


def each(function, *columns: np.ndarray) -> list[float]:
    return [function(*(float(x) for x in row)) for row in zip(*columns, strict=True)]


def larger(a: float, b: float) -> float:
    if math.isnan(a) or math.isnan(b):
        return a if math.isnan(b) else b
    return max((a, math.copysign(1, a)), (b, math.copysign(1, b)))[0]


def smaller(a: float, b: float) -> float:
    return -larger(-a, -b)


MAXIMUM = {"gfx1201": "v_max_num_f32"}
MINIMUM = {"gfx1201": "v_min_num_f32"}


@pytest.mark.parametrize("arch", ARCHS)
def test_two_operands(arch: str) -> None:
    m = machine_for(arch, A, B, dtype=np.float32)
    maximum, minimum = MAXIMUM.get(arch, "v_max_f32"), MINIMUM.get(arch, "v_min_f32")
    m.run(
        "v_add_f32 v10, v1, v2\n v_sub_f32 v11, v1, v2\n v_mul_f32 v12, v1, v2\n"
        f"v_subrev_f32 v13, v1, v2\n {maximum} v14, v1, v2\n {minimum} v15, v1, v2"
    )
    same_bits(m.f[10], each(lambda a, b: fma(a, 1.0, b), A, B))
    same_bits(m.f[11], each(lambda a, b: fma(b, -1.0, a), A, B))
    same_bits(m.f[12], each(lambda a, b: fma(a, b, -0.0), A, B))
    same_bits(m.f[13], each(lambda a, b: fma(a, -1.0, b), A, B))
    same_bits(m.f[14], each(larger, A, B))
    same_bits(m.f[15], each(smaller, A, B))


@pytest.mark.parametrize("arch", ARCHS)
def test_fused_multiply_add_rounds_once(arch: str) -> None:
    rng = np.random.default_rng(1)
    a, b, c = (rng.choice(EDGES, 900) for _ in range(3))
    # Sums a hair above and below the middle of two floats, which float64 can't tell from it.
    a[:2], b[:2], c[:2] = 1 + 2.0**-23, 1 + 2.0**-23, (2.0**-60, -(2.0**-60))
    a[2:4], b[2:4], c[2:4] = 4097.0, 4097.0, (2.0**-40, -(2.0**-40))
    m = machine_for(arch, a, b, c, dtype=np.float32)
    m.v[10] = m.v[3]
    m.run(
        "v_fma_f32 v11, v1, v2, v3\n v_fmac_f32 v10, v1, v2\n v_fma_f32 v12, -v1, |v2|, -v3\n"
        "v_fma_f32 v13, v1, v2, v3 clamp\n v_fma_f32 v14, v1, 2.0, 0.5"
    )
    want = each(fma, a, b, c)
    same_bits(m.f[11], want)
    same_bits(m.f[10], want)
    same_bits(m.f[12], each(lambda x, y, z: fma(-x, abs(y), -z), a, b, c))
    clamped = [0.0 if math.isnan(w) else min(max(w, 0.0), 1.0) for w in want]
    np.testing.assert_array_equal(m.f[13][: len(a)], np.array(clamped, np.float32))
    same_bits(m.f[14], each(lambda x: fma(x, 2.0, 0.5), a))


@pytest.mark.parametrize("arch", ARCHS)
def test_division_as_compiled(arch: str) -> None:
    """The sequence that compilers emit for a correctly rounded a / b."""
    m = machine_for(arch, A, B, dtype=np.float32)
    vcc = "vcc" if arch == "gfx942" else "vcc_lo"
    scalar = "s[2:3]" if arch == "gfx942" else "s2"
    m.run(
        f"v_div_scale_f32 v3, {scalar}, v2, v2, v1\n v_div_scale_f32 v4, {vcc}, v1, v2, v1\n"
        "v_rcp_f32 v5, v3\n v_fma_f32 v6, -v3, v5, 1.0\n v_fma_f32 v5, v6, v5, v5\n"
        "v_mul_f32 v7, v4, v5\n v_fma_f32 v8, -v3, v7, v4\n v_fma_f32 v7, v8, v5, v7\n"
        "v_fma_f32 v8, -v3, v7, v4\n v_div_fmas_f32 v8, v8, v5, v7\n"
        "v_div_fixup_f32 v9, v8, v2, v1"
    )

    def divide(a: float, b: float) -> float:
        if math.isnan(a) or math.isnan(b) or (a == 0 and b == 0):
            return math.nan
        if math.isinf(a) and math.isinf(b):
            return math.nan
        sign = math.copysign(1, a) * math.copysign(1, b)
        if math.isinf(a) or b == 0:
            return sign * math.inf
        if math.isinf(b) or a == 0:
            return sign * 0.0
        return rounded(Fraction(a) / Fraction(b))

    want = np.array(each(divide, A, B), np.float32)
    # Denormal quotients are rounded twice by this sequence: the last bit may differ.
    denormal = (np.abs(want) < 2.0**-126) & (want != 0)
    got = m.f[9][: len(want)]
    same_bits(np.where(denormal, np.float32(1), got), np.where(denormal, 1, want))
    assert (np.abs(got[denormal] - want[denormal]) <= 2.0**-149).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_one_operand(arch: str) -> None:
    m = machine_for(arch, EDGES, dtype=np.float32)
    names = ("ceil", "floor", "trunc", "rndne", "sqrt", "rcp", "rsq", "exp", "log", "fract")
    m.run("\n".join(f"v_{name}_f32 v{10 + i}, v1" for i, name in enumerate(names)))
    finite = np.isfinite(EDGES)

    def whole(function) -> list[float]:
        return [
            math.copysign(float(function(float(x))), x) if f else float(x)
            for x, f in zip(EDGES, finite, strict=True)
        ]

    same_bits(m.f[10], whole(math.ceil))
    same_bits(m.f[11], whole(math.floor))
    same_bits(m.f[12], whole(math.trunc))
    same_bits(m.f[13], whole(round))
    flushed = np.where(np.abs(EDGES) < 2.0**-126, np.copysign(0, EDGES), EDGES).astype(float)
    tiny = np.float32(2.0**-126)

    def flush(values) -> np.ndarray:
        single = np.asarray(values, np.float64).astype(np.float32)
        return np.where(np.abs(single) < tiny, np.copysign(np.float32(0), single), single)

    with np.errstate(all="ignore"):
        same_bits(m.f[14], np.sqrt(EDGES.astype(np.float64)))
        same_bits(m.f[15], flush(1 / flushed))
        same_bits(m.f[16], flush(1 / np.sqrt(flushed)))
        same_bits(m.f[17], flush(2.0**flushed))
        same_bits(m.f[18], flush(np.log2(flushed)))
    fraction = m.f[19][: len(EDGES)]
    assert ((fraction[finite] >= 0) & (fraction[finite] < 1)).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_conversions(arch: str) -> None:
    m = machine_for(arch, EDGES, dtype=np.float32)
    m.run(
        "v_cvt_i32_f32 v10, v1\n v_cvt_u32_f32 v11, v1\n v_cvt_f16_f32 v12, v1\n"
        "v_cvt_f32_f16 v13, v12\n v_frexp_exp_i32_f32 v14, v1\n v_frexp_mant_f32 v15, v1"
    )

    def integer(x: float, low: int, high: int) -> int:
        if math.isnan(x):
            return 0
        return low if x < low else high if x > high else int(x)

    count = len(EDGES)
    assert list(m.i[10][:count]) == [integer(float(x), -(2**31), 2**31 - 1) for x in EDGES]
    assert list(m.v[11][:count]) == [integer(float(x), 0, 2**32 - 1) for x in EDGES]
    half = {"digits": 11, "least": -14, "top": 15}
    want = [
        float(x) if not math.isfinite(x) else math.copysign(rounded(Fraction(float(x)), **half), x)
        for x in EDGES
    ]
    same_bits(m.f[13], want)
    for i, x in enumerate(EDGES):
        if np.isfinite(x):
            mantissa, exponent = math.frexp(float(x))
            assert m.i[14][i] == exponent
            assert m.f[15][i] == mantissa
    ints = np.array([0, 1, -1, 2**24 + 1, 2**31 - 1, -(2**31), 2**31 - 65], np.int32)
    n = machine_for(arch, ints, dtype=np.int32)
    n.run("v_cvt_f32_i32 v10, v1\n v_cvt_f32_u32 v11, v1\n v_cvt_f32_ubyte1 v12, v1")
    same_bits(n.f[10], [rounded(Fraction(int(x))) for x in ints])
    same_bits(n.f[11], [rounded(Fraction(int(x) % 2**32)) for x in ints])
    same_bits(n.f[12], [float(int(x) >> 8 & 255) for x in ints])


@pytest.mark.parametrize("arch", ARCHS)
def test_round_to_zero_conversion(arch: str) -> None:
    m = machine_for(arch, A, B, dtype=np.float32)
    name = "v_cvt_pkrtz_f16_f32" if arch == "gfx942" else "v_cvt_pk_rtz_f16_f32"
    m.run(f"{name} v10, v1, v2")
    got = m.v[10].view(np.float16).reshape(-1, 2)[: len(A)].astype(np.float64)
    for column, source in ((0, A), (1, B)):
        for x, half in zip(source.astype(np.float64), got[:, column], strict=True):
            if math.isnan(x):
                assert math.isnan(half)
            elif math.isinf(x):
                assert half == x
            else:  # never away from zero, and less than one step from it
                assert abs(half) <= abs(x)
                step = math.ulp(abs(half)) * 2**42 if half else 2.0**-24
                assert abs(x) - abs(half) < max(step, 2.0**-24) or abs(half) == 65504


@pytest.mark.parametrize("arch", ARCHS)
def test_compares_and_classes(arch: str) -> None:
    m = machine_for(arch, A, B, dtype=np.float32)
    vcc = "vcc" if arch == "gfx942" else "vcc_lo"
    a, b = A.astype(float), B.astype(float)
    unordered = np.isnan(a) | np.isnan(b)
    wants = {
        "lt": a < b, "eq": a == b, "le": a <= b, "gt": a > b, "lg": (a < b) | (a > b), "ge": a >= b,
        "o": ~unordered, "u": unordered, "nge": ~(a >= b), "nlg": ~((a < b) | (a > b)),
        "ngt": ~(a > b), "nle": ~(a <= b), "neq": a != b, "nlt": ~(a < b),
    }  # fmt: skip
    for name, want in wants.items():
        m.run(f"v_cmp_{name}_f32 {vcc}, v1, v2")
        np.testing.assert_array_equal(m.mask(106)[: len(A)], want, err_msg=name)
    classes = {
        1 << 2: a == -np.inf, 1 << 9: a == np.inf, 3: np.isnan(a),
        1 << 5: (a == 0) & np.signbit(a), 1 << 6: (a == 0) & ~np.signbit(a),
        1 << 7: (a > 0) & (a < 2.0**-126), 1 << 4: (a < 0) & (a > -(2.0**-126)),
        1 << 8: (a >= 2.0**-126) & np.isfinite(a), 1 << 3: (a <= -(2.0**-126)) & np.isfinite(a),
    }  # fmt: skip
    for bits, want in classes.items():
        m.v[3] = bits
        m.run(f"v_cmp_class_f32 {vcc}, v1, v3")
        np.testing.assert_array_equal(m.mask(106)[: len(A)], want, err_msg=str(bits))


@pytest.mark.parametrize("arch", ARCHS)
def test_three_way(arch: str) -> None:
    rng = np.random.default_rng(2)
    a, b, c = (rng.choice(EDGES[~np.isnan(EDGES)], 300) for _ in range(3))
    m = machine_for(arch, a, b, c, dtype=np.float32)
    names = ("max3_num", "min3_num", "med3_num") if arch == "gfx1201" else ("max3", "min3", "med3")
    m.run("\n".join(f"v_{n}_f32 v{10 + i}, v1, v2, v3" for i, n in enumerate(names)))
    same_bits(m.f[10], each(lambda x, y, z: larger(larger(x, y), z), a, b, c))
    same_bits(m.f[11], each(lambda x, y, z: smaller(smaller(x, y), z), a, b, c))
    np.testing.assert_array_equal(m.f[12][:300], np.median(np.stack([a, b, c]), 0))


@pytest.mark.parametrize("arch", ARCHS)
def test_scaling_and_output_modifiers(arch: str) -> None:
    exponents = np.array([0, 1, -1, 127, -126, -149, -150, 300, -300, 2**31 - 1, -(2**31)])
    values = np.array([1.0, -1.5, 2.0**-126, 3e38, 1 + 2.0**-23, np.inf, -0.0], np.float32)
    pairs = list(itertools.product(values, exponents))
    m = machine_for(arch, [p[0] for p in pairs], dtype=np.float32)
    m.v[2] = np.resize(np.array([p[1] for p in pairs], np.int64).astype(np.uint32), m.size)
    m.run(
        "v_ldexp_f32 v10, v1, v2\n v_add_f32 v11, v1, v1 mul:2\n v_mul_f32 v12, v1, v1 div:2\n"
        "v_add_f32 v13, v1, 1.0 clamp"
    )

    def scaled(x: float, e: int) -> float:
        if x == 0 or math.isinf(x):
            return x
        return rounded(Fraction(x) * Fraction(2) ** max(min(e, 400), -400))

    same_bits(m.f[10], [scaled(float(x), int(e)) for x, e in pairs])
    with np.errstate(over="ignore"):
        same_bits(m.f[11][:7], np.float32([4 * float(pairs[i][0]) for i in range(7)]))
        same_bits(m.f[12][:7], np.float32([float(p[0]) ** 2 / 2 for p in pairs[:7]]))
    same_bits(m.f[13][:7], [1.0] * 7)


@pytest.mark.parametrize("arch", ARCHS)
def test_half_precision(arch: str) -> None:
    halves = np.array(
        [0, -0.0, 1, -1.5, 2048, 2049, 65504, -65504, 2.0**-24, 2.0**-14, 0.1, np.inf, np.nan],
        np.float16,
    )
    pairs = np.array(list(itertools.product(halves, halves)), np.float16)
    a, b = pairs[:, 0].astype(float), pairs[:, 1].astype(float)
    words = [p.astype(np.float16).view(np.uint16).astype(np.uint32) | 0xABCD0000 for p in pairs.T]
    m = machine_for(arch, *words, dtype=np.uint32)
    m.v[10:14] = 0x12345678
    m.run("v_add_f16 v10, v1, v2\n v_mul_f16 v11, v1, v2\n v_fma_f16 v12, v1, v2, v1")
    form = {"digits": 11, "least": -14, "top": 15}
    for row, want in (
        (10, each(lambda x, y: fma(x, 1.0, y, **form), a, b)),
        (11, each(lambda x, y: fma(x, y, -0.0, **form), a, b)),
        (12, each(lambda x, y: fma(x, y, x, **form), a, b)),
    ):
        got = m.v[row].astype(np.uint16).view(np.float16).astype(np.float32)
        same_bits(got, want)
    # RDNA keeps the other half of the register, CDNA clears it.
    assert set(m.v[10] >> 16) == {0 if arch == "gfx942" else 0x1234}


@pytest.mark.parametrize("arch", ARCHS)
def test_double_precision(arch: str) -> None:
    values = np.array(
        [0.0, -0.0, 1.0, 1 + 2.0**-52, 1e300, -1e300, 5e-324, 2.0**-1022, 3.5, np.inf, np.nan]
    )
    pairs = np.array(list(itertools.product(values, values)))
    words = pairs.view(np.uint32).reshape(-1, 4)
    m = machine_for(arch, *words.T, dtype=np.uint32)  # v[1:2], v[3:4]
    m.run(
        "v_add_f64 v[10:11], v[1:2], v[3:4]\n v_mul_f64 v[12:13], v[1:2], v[3:4]\n"
        "v_fma_f64 v[14:15], v[1:2], v[3:4], v[1:2]\n v_cvt_f32_f64 v16, v[1:2]"
        if arch != "gfx942"
        else "v_mov_b32 v20, v1\n v_mov_b32 v21, v2\n v_mov_b32 v22, v3\n v_mov_b32 v23, v4\n"
        "v_add_f64 v[10:11], v[20:21], v[22:23]\n v_mul_f64 v[12:13], v[20:21], v[22:23]\n"
        "v_fma_f64 v[14:15], v[20:21], v[22:23], v[20:21]\n v_cvt_f32_f64 v16, v[20:21]"
    )

    def wide(row: int) -> np.ndarray:
        return np.stack([m.v[row], m.v[row + 1]], 1).reshape(-1).view(np.float64)[: len(pairs)]

    form = {"digits": 53, "least": -1022, "top": 1023}
    for row, want in (
        (10, each(lambda x, y: fma(x, 1.0, y, **form), *pairs.T)),
        (12, each(lambda x, y: fma(x, y, -0.0, **form), *pairs.T)),
        (14, each(lambda x, y: fma(x, y, x, **form), *pairs.T)),
    ):
        np.testing.assert_array_equal(wide(row), want)
    with np.errstate(over="ignore"):
        same_bits(m.f[16], pairs[:, 0].astype(np.float32))
