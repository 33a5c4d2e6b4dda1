"""Packed, mixed-precision, FP8 and matrix instructions on registers."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from emulator_machine import ARCHS, Machine, fma, machine_for, same_bits

HALVES = np.array(
    [0, -0.0, 1, -1.5, 2048, 2049, 65504, -65504, 2.0**-24, 2.0**-14, 0.1, np.inf, np.nan],
    np.float16,
)
FORM = {"digits": 11, "least": -14, "top": 15}


def words(seed: int, count: int = 200) -> np.ndarray:
    """Registers with two of HALVES each."""
    picks = np.random.default_rng(seed).choice(HALVES, (count, 2))
    return np.ascontiguousarray(picks).view(np.uint32)[:, 0]


def split(words: np.ndarray) -> np.ndarray:
    """float32 [2, lanes] of packed halves."""
    return np.ascontiguousarray(words).view(np.float16).reshape(-1, 2).T.astype(np.float32)


@pytest.mark.parametrize("arch", ARCHS)
def test_packed_halves(arch: str) -> None:
    a, b, c = words(1), words(2), words(3)
    m = machine_for(arch, a, b, c, dtype=np.uint32)
    maximum = "v_pk_max_num_f16" if arch == "gfx1201" else "v_pk_max_f16"
    m.run(
        "v_pk_add_f16 v10, v1, v2\n v_pk_mul_f16 v11, v1, v2\n v_pk_fma_f16 v12, v1, v2, v3\n"
        f"{maximum} v13, v1, v2\n v_pk_fma_f16 v14, v1, v2, v3 neg_lo:[1,0,0] neg_hi:[0,0,1]\n"
        "v_pk_add_f16 v15, v1, v2 op_sel:[1,0] op_sel_hi:[0,0]\n v_pk_add_f16 v16, v1, 1.0"
    )
    x, y, z = split(a), split(b), split(c)
    count = len(a)

    def expect(row: int, function) -> None:
        got = split(m.v[row])[:, :count]
        for half in (0, 1):
            want = [
                function(half, float(p), float(q), float(r))
                for p, q, r in zip(x[half], y[half], z[half], strict=True)
            ]
            same_bits(got[half], want)

    expect(10, lambda h, p, q, r: fma(p, 1.0, q, **FORM))
    expect(11, lambda h, p, q, r: fma(p, q, -0.0, **FORM))
    expect(12, lambda h, p, q, r: fma(p, q, r, **FORM))
    expect(14, lambda h, p, q, r: fma(p if h else -p, q, -r if h else r, **FORM))
    np.testing.assert_array_equal(split(m.v[13])[:, :count], np.fmax(x, y))
    both = split(m.v[15])[:, :count]
    same_bits(
        both[0], [fma(float(p), 1.0, float(q), **FORM) for p, q in zip(x[1], y[0], strict=True)]
    )
    same_bits(
        both[1], [fma(float(p), 1.0, float(q), **FORM) for p, q in zip(x[0], y[0], strict=True)]
    )
    same_bits(split(m.v[16])[0, :count], [fma(float(p), 1.0, 1.0, **FORM) for p in x[0]])


@pytest.mark.parametrize("arch", ARCHS)
def test_mixed_precision(arch: str) -> None:
    a, b = words(4), words(5)
    c = np.random.default_rng(6).standard_normal(len(a)).astype(np.float32)
    m = machine_for(arch, a, b, c.view(np.uint32), dtype=np.uint32)
    m.v[11] = m.v[12] = 0x55556666
    m.run(
        "v_fma_mix_f32 v10, v1, v2, v3 op_sel:[1,0,0] op_sel_hi:[1,1,0]\n"
        "v_fma_mixlo_f16 v11, v1, v2, v3 op_sel_hi:[1,1,0]\n"
        "v_fma_mixhi_f16 v12, -v1, |v2|, v3 op_sel_hi:[1,1,0]"
    )
    x, y = split(a), split(b)
    rows = range(len(a))
    same_bits(m.f[10], [fma(float(x[1, i]), float(y[0, i]), float(c[i])) for i in rows])
    low = [fma(float(x[0, i]), float(y[0, i]), float(c[i])) for i in rows]
    got = split(m.v[11])[0, : len(a)]
    with np.errstate(over="ignore"):
        same_bits(got, np.array(low, np.float32).astype(np.float16).astype(np.float32))
    high = [fma(-float(x[0, i]), abs(float(y[0, i])), float(c[i])) for i in rows]
    got = split(m.v[12])[1, : len(a)]
    with np.errstate(over="ignore"):
        same_bits(got, np.array(high, np.float32).astype(np.float16).astype(np.float32))
    assert set(m.v[11] >> 16) == {0x5555}
    assert set(m.v[12] & 0xFFFF) == {0x6666}


def test_pairs_of_float32_on_cdna() -> None:
    rng = np.random.default_rng(7)
    values = rng.standard_normal((6, 64)).astype(np.float32)
    m = Machine("gfx942")
    m.f[2:8] = values
    m.s[:, 4], m.s[:, 5] = np.array([1.5, -2.0], np.float32).view(np.uint32)
    m.run(
        "v_pk_fma_f32 v[10:11], v[2:3], v[4:5], v[6:7]\n"
        "v_pk_mul_f32 v[12:13], v[2:3], s[4:5] op_sel_hi:[1,0]\n"
        "v_pk_add_f32 v[14:15], v[2:3], v[4:5] op_sel:[1,0] op_sel_hi:[0,1] neg_lo:[0,1]\n"
        "v_pk_mov_b32 v[16:17], v[2:3], v[4:5] op_sel:[1,0]"
    )
    a, b, c = values[0:2], values[2:4], values[4:6]
    wide = (a.astype(np.float64) * b + c).astype(np.float32)
    np.testing.assert_array_equal(m.f[10:12], wide)
    np.testing.assert_array_equal(m.f[12:14], a * np.float32(1.5))
    np.testing.assert_array_equal(m.f[14], a[1] - b[0])
    np.testing.assert_array_equal(m.f[15], a[0] + b[1])
    np.testing.assert_array_equal(m.f[16:18], [a[1], b[0]])


@pytest.mark.parametrize("arch", ARCHS)
def test_dot_products_of_floats(arch: str) -> None:
    rng = np.random.default_rng(8)
    pairs = rng.standard_normal((2, 64, 2))
    half = pairs.astype(np.float16)
    brain = pairs.astype(ml_dtypes.bfloat16)
    c = rng.standard_normal(64).astype(np.float32)
    for kind, data in (("f16", half), ("bf16", brain)):
        if kind == "bf16" and arch == "gfx942":
            continue  # gfx942 has no such instruction
        a, b = (np.ascontiguousarray(d).view(np.uint32)[:, 0] for d in data)
        m = machine_for(arch, a, b, c.view(np.uint32), dtype=np.uint32)
        m.run(f"v_dot2_f32_{kind} v10, v1, v2, v3")
        want = (data[0].astype(np.float64) * data[1].astype(np.float64)).sum(1) + c
        same_bits(m.f[10], want.astype(np.float32))


FP8 = {
    "gfx942": (ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz),
    "gfx950": (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
    "gfx1201": (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2),
}


@pytest.mark.parametrize("arch", FP8)
def test_fp8_conversions(arch: str) -> None:
    codes = np.arange(256, dtype=np.uint8)
    packed = np.stack([codes, codes[::-1], codes, codes[::-1]], 1).copy().view(np.uint32)[:, 0]
    values = np.array([0.0, 1.0, -1.7, 0.013, 100.0, 240.0, -3e-3, 17.3], np.float32)
    pairs = np.array(list(itertools.product(values, values)), np.float32)
    for name, dtype in zip(("fp8", "bf8"), FP8[arch], strict=True):
        m = machine_for(arch, packed, dtype=np.uint32)
        select = "op_sel:[1,0]" if arch == "gfx1201" else "src0_sel:WORD_1"
        suffix = "_e64" if arch == "gfx1201" else "_sdwa"
        m.run(f"v_cvt_f32_{name} v10, v1\nv_cvt_pk_f32_{name}{suffix} v[12:13], v1 {select}")
        want = codes.view(dtype).astype(np.float32)
        same_bits(m.f[10], want)
        same_bits(m.f[12], want)
        same_bits(m.f[13], want[::-1])
        n = machine_for(arch, pairs[:, 0], pairs[:, 1], dtype=np.float32)
        n.v[10] = 0xAABBCCDD
        n.run(f"v_cvt_pk_{name}_f32 v10, v1, v2 op_sel:[0,0,1]")
        low, high = (pairs[:, i].astype(dtype).view(np.uint8).astype(np.uint32) for i in (0, 1))
        np.testing.assert_array_equal(n.v[10][: len(pairs)], 0xCCDD | low << 16 | high << 24)


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_wmma_of_the_active_waves_only(arch: str) -> None:
    rng = np.random.default_rng(9)
    a, b = (rng.standard_normal((16, 16)).astype(np.float16) for _ in range(2))
    m = Machine(arch, 2)
    lane = np.arange(32)
    if arch == "gfx1100":  # each lane holds a whole row of A, a column of B; twice
        count = 8
        left, right = a[lane % 16], b.T[lane % 16]
    else:  # each lane holds eight values of K; the second half of the lanes the other eight
        count = 4
        left = np.stack([a[n % 16, n // 16 * 8 : n // 16 * 8 + 8] for n in lane])
        right = np.stack([b[n // 16 * 8 : n // 16 * 8 + 8, n % 16] for n in lane])
    for at, side in ((2, left), (10, right)):
        rows = np.ascontiguousarray(side).view(np.uint32).T
        m.state.v[at : at + count] = rows[:, None, :]
    m.v[20:28] = np.float32(1).view(np.uint32)
    m.state.set_active(np.array([False, True]))
    m.run(f"v_wmma_f32_16x16x16_f16 v[20:27], v[2:{1 + count}], v[10:{9 + count}], v[20:27]")
    got = m.state.v[20:28].view(np.float32)
    assert (got[:, 0] == 1).all()
    d = a.astype(np.float64) @ b.astype(np.float64) + 1
    row = np.arange(8)[:, None]
    place = 2 * row + lane // 16 if arch == "gfx1100" else row + lane // 16 * 8
    np.testing.assert_allclose(got[:, 1], d[place, lane % 16], rtol=1e-6)


def test_mfma_with_accumulation_registers() -> None:
    rng = np.random.default_rng(10)
    a, b = rng.standard_normal((32, 8)), rng.standard_normal((8, 32))
    a, b = a.astype(np.float16), b.astype(np.float16)
    m = Machine("gfx942")
    lane = np.arange(64)
    left = np.stack([a[n % 32, n // 32 * 4 : n // 32 * 4 + 4] for n in lane])
    right = np.stack([b[n // 32 * 4 : n // 32 * 4 + 4, n % 32] for n in lane])
    m.v[2:4] = left.view(np.uint32).T
    m.v[256 + 4 : 256 + 6] = right.view(np.uint32).T
    m.run("v_mfma_f32_32x32x8_f16 a[16:31], v[2:3], a[4:5], 0.5")
    got = m.f[256 + 16 : 256 + 32]
    register = np.arange(16)[:, None]
    row = register // 4 * 8 + lane // 32 * 4 + register % 4
    want = a.astype(np.float64) @ b.astype(np.float64) + 0.5
    np.testing.assert_allclose(got, want[row, lane % 32], rtol=1e-6)


def test_scaled_mfma_and_what_only_looks_like_one() -> None:
    rng = np.random.default_rng(11)
    kind = ml_dtypes.float8_e4m3fn
    a, b = (rng.standard_normal(s).astype(kind) for s in ((32, 64), (64, 32)))
    m = Machine("gfx950")
    lane = np.arange(64)
    runs = [np.r_[k : k + 16, 32 + k : 48 + k] for k in (0, 16)]  # of K, by half of the wave
    left = np.stack([a[n % 32, runs[n // 32]] for n in lane])
    right = np.stack([b[runs[n // 32], n % 32] for n in lane])
    m.v[2:10], m.v[10:18] = left.view(np.uint32).T, right.view(np.uint32).T
    m.v[18], m.v[19] = 127 + lane // 32, 0x7E000000  # 2^0 or 2^1, by half; 2^-1 in the top byte
    m.run(
        "s_nop 0\n v_mov_b32 v60, 0\n v_mfma_f32_32x32x64_f8f6f4 v[20:35], v[2:9], v[10:17], 0\n"
        "v_mfma_scale_f32_32x32x64_f8f6f4 v[40:55], v[2:9], v[10:17], 0, v18, v19 "
        "op_sel:[0,1,0] op_sel_hi:[0,1,0]"
    )
    register = np.arange(16)[:, None]
    row = register // 4 * 8 + lane // 32 * 4 + register % 4
    wide, other = a.astype(np.float64), b.astype(np.float64)
    np.testing.assert_allclose(m.f[20:36], (wide @ other)[row, lane % 32], rtol=1e-6, atol=1e-6)
    scaled = (wide * np.repeat([1, 2], 32)) @ other / 2
    np.testing.assert_allclose(m.f[40:56], scaled[row, lane % 32], rtol=1e-6, atol=1e-6)
