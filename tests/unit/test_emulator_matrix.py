"""Matrix instructions on packed registers against NumPy on the matrices: every shape and type."""

from __future__ import annotations

import numpy as np
import pytest
from matrix_case import WAVES, Case, pack, random_codes, unit, unpack, value

from pumice.emulator.matrix import Modifiers, matrix_multiply
from pumice.emulator.matrix_layouts import index_place, input_place, output_place
from pumice.emulator.matrix_table import BITS, F8F6F4, instruction

WMMA = [
    "f32_16x16x16_f16",
    "f32_16x16x16_bf16",
    "f16_16x16x16_f16",
    "bf16_16x16x16_bf16",
]
MFMA = [
    "f32_32x32x1_2b_f32",
    "f32_16x16x1_4b_f32",
    "f32_4x4x1_16b_f32",
    "f32_32x32x2_f32",
    "f32_16x16x4_f32",
    "f32_32x32x4_2b_f16",
    "f32_16x16x4_4b_f16",
    "f32_4x4x4_16b_f16",
    "f32_32x32x8_f16",
    "f32_16x16x16_f16",
    "f32_32x32x4_2b_bf16",
    "f32_16x16x4_4b_bf16",
    "f32_4x4x4_16b_bf16",
    "f32_32x32x8_bf16",
    "f32_16x16x16_bf16",
    "f64_16x16x4_f64",
    "f64_4x4x4_4b_f64",
]
FP8 = [f"{a}_{b}" for a in ("fp8", "bf8") for b in ("fp8", "bf8")]
FLOATING = [
    *[("gfx1100", f"v_wmma_{name}", wave) for name in WMMA for wave in (32, 64)],
    *[("gfx1201", f"v_wmma_{name}", wave) for name in WMMA for wave in (32, 64)],
    *[("gfx1200", f"v_wmma_f32_16x16x16_{pair}", wave) for pair in FP8 for wave in (32, 64)],
    *[("gfx90a", f"v_mfma_{name}", 64) for name in MFMA],
    *[("gfx942", f"v_mfma_{name}", 64) for name in MFMA],
    *[("gfx942", f"v_mfma_f32_16x16x32_{pair}", 64) for pair in FP8],
    *[("gfx950", f"v_mfma_f32_32x32x16_{pair}", 64) for pair in FP8],
    *[("gfx950", f"v_mfma_f32_16x16x32_{dtype}", 64) for dtype in ("f16", "bf16")],
    *[("gfx950", f"v_mfma_f32_32x32x16_{dtype}", 64) for dtype in ("f16", "bf16")],
]
SPARSE = [
    *[("gfx1201", f"v_swmmac_f32_16x16x32_{t}", w) for t in ("f16", "bf16") for w in (32, 64)],
    *[("gfx1201", f"v_swmmac_f32_16x16x32_{pair}", w) for pair in FP8[:2] for w in (32, 64)],
    ("gfx1201", "v_swmmac_f16_16x16x32_f16", 32),
    ("gfx942", "v_smfmac_f32_16x16x32_f16", 64),
    ("gfx942", "v_smfmac_f32_32x32x16_bf16", 64),
    ("gfx942", "v_smfmac_f32_16x16x64_fp8_bf8", 64),
    ("gfx950", "v_smfmac_f32_16x16x64_f16", 64),
]

IU = [
    *[("gfx1100", f"v_wmma_i32_16x16x16_iu{bits}", w) for bits in (8, 4) for w in (32, 64)],
    *[("gfx1201", f"v_wmma_i32_16x16x16_iu{bits}", w) for bits in (8, 4) for w in (32, 64)],
    *[("gfx1201", "v_wmma_i32_16x16x32_iu4", w) for w in (32, 64)],
]
I8 = [
    *[("gfx942", f"v_mfma_i32_{shape}_i8", 64) for shape in ("16x16x32", "32x32x16")],
    *[("gfx942", f"v_mfma_i32_{shape}_i8", 64) for shape in ("32x32x4_2b", "4x4x4_16b")],
    *[("gfx90a", f"v_mfma_i32_{shape}i8", 64) for shape in ("16x16x16", "32x32x8")],
    *[("gfx950", f"v_mfma_i32_{shape}_i8", 64) for shape in ("16x16x64", "32x32x32")],
]
INTEGER = [
    *[(*case, a, b) for case in IU for a in (False, True) for b in (False, True)],
    *[(*case, True, True) for case in I8],
]


@pytest.mark.parametrize(("arch", "name", "wave"), FLOATING)
def test_floating_point(arch: str, name: str, wave: int) -> None:
    case = Case(arch, name, wave)
    a, b, c = case.values()
    case.check(case.run(), np.einsum("wbmk,wbnk->wbmn", a, b) + c)


@pytest.mark.parametrize(("arch", "name", "wave"), SPARSE)
def test_sparse(arch: str, name: str, wave: int) -> None:
    case = Case(arch, name, wave, 1)
    spec = case.spec
    pairs = np.array([[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]])
    chosen = pairs[case.random.integers(0, 6, (WAVES, spec.m, spec.k // 4))]
    within = chosen.reshape(WAVES, spec.m, spec.k // 2)
    a, b, c = case.values()
    dense = np.zeros((WAVES, spec.m, spec.k))
    places = 4 * (np.arange(spec.k // 2) // 2) + within
    np.put_along_axis(dense, places, a[:, 0], axis=2)
    expected = np.einsum("wmk,wnk->wmn", dense, b[:, 0])[:, None] + c
    place = index_place(spec, arch, wave, 0)
    case.check(case.run(index=pack(within, place, wave)), expected)
    if place.slot.max() < 8:  # a second set in the same register
        second = index_place(spec, arch, wave, 1)
        index = pack(within, second, wave)
        which = {"abid": 1} if "mfmac" in name else {"opsel": 1}
        case.check(case.run(index=index, **which), expected)


@pytest.mark.parametrize(("arch", "name", "wave", "signed_a", "signed_b"), INTEGER)
def test_integers_wrap_and_clamp(
    arch: str, name: str, wave: int, signed_a: bool, signed_b: bool
) -> None:
    spec = instruction(name)
    mfma = spec.kind == "mfma"
    random = np.random.default_rng(2)
    bits = BITS[spec.a]
    codes = [
        random.integers(0, 1 << bits, (WAVES, spec.blocks, rows, spec.k)).astype(np.uint8)
        for rows in (spec.m, spec.n)
    ]
    wide = [code.astype(np.int64) for code in codes]
    a, b = (
        np.where(signed & (w >= 1 << (bits - 1)), w - (1 << bits), w)
        for w, signed in zip(wide, (signed_a, signed_b), strict=True)
    )
    c = random.integers(-(1 << 31), 1 << 31, (WAVES, spec.blocks, spec.m, spec.n))
    c[0, 0, 0] = (1 << 31) - 1
    c[0, 0, 1] = -(1 << 31)
    expected = np.einsum("wbmk,wbnk->wbmn", a, b) + c
    assert (expected > (1 << 31) - 1).any() or (expected < -(1 << 31)).any()
    place = output_place(spec, arch, wave)
    registers = [
        pack(codes[0], input_place(spec, arch, wave, "a"), wave),
        pack(codes[1], input_place(spec, arch, wave, "b"), wave),
        pack(c & 0xFFFFFFFF, place, wave),
    ]
    neg = 0 if mfma else signed_a + 2 * signed_b
    for clamp in (False,) if mfma else (False, True):
        chosen = Modifiers(arch, wave, neg=neg, clamp=clamp)
        d = unpack(matrix_multiply(name, *registers, modifiers=chosen), place)
        if clamp:
            np.testing.assert_array_equal(
                d.view(np.int32), np.clip(expected, -(1 << 31), (1 << 31) - 1)
            )
        else:
            np.testing.assert_array_equal(d, expected & 0xFFFFFFFF)


@pytest.mark.parametrize("format_b", range(5))
@pytest.mark.parametrize("format_a", range(5))
@pytest.mark.parametrize(
    "name", ["v_mfma_f32_16x16x128_f8f6f4", "v_mfma_scale_f32_32x32x64_f8f6f4"]
)
def test_f8f6f4(name: str, format_a: int, format_b: int) -> None:
    spec = instruction(name)
    random = np.random.default_rng(6)
    kinds = [F8F6F4[format_a], F8F6F4[format_b]]
    bits = [{"e4m3": 8, "e5m2": 8, "e2m3": 6, "e3m2": 6, "e2m1": 4}[kind] for kind in kinds]
    codes = [random_codes(random, kind, (WAVES, 1, spec.m, spec.k)) for kind in kinds]
    places = [
        input_place(spec, "gfx950", 64, operand, width)
        for operand, width in zip("ab", bits, strict=True)
    ]
    a, b = (pack(c, p, 64) for c, p in zip(codes, places, strict=True))
    values = [value(c, kind) for c, kind in zip(codes, kinds, strict=True)]
    modifiers = Modifiers(
        "gfx950", 64, cbsz=format_a, blgp=format_b, scale_byte_a=2, scale_byte_b=1
    )
    scales = {}
    if spec.scaled:
        for operand, byte, side in (("a", 2, 0), ("b", 1, 1)):
            exponents = random.integers(120, 134, (WAVES, spec.m, spec.k // 32))
            registers = random.integers(0, 1 << 32, (WAVES, 1, 64), dtype=np.uint32)
            lanes = registers.view(np.uint8).reshape(WAVES, 64, 4)
            for group in range(spec.k // 32):  # a lane's byte: of its row, its 32 values
                lanes[:, group * spec.m : (group + 1) * spec.m, byte] = exponents[:, :, group]
            scales[f"scale_{operand}"] = registers
            factors = np.exp2(exponents - 127.0).repeat(32, axis=2)[:, None]
            values[side] = values[side] * factors
    place = output_place(spec, "gfx950", 64)
    start = random.standard_normal((WAVES, 1, spec.m, spec.n)).astype(np.float32)
    c = pack(start.view(np.uint32), place, 64)
    d = matrix_multiply(name, a, b, c, modifiers=modifiers, **scales)
    actual = unpack(d, place).view(np.float32).astype(np.float64)
    expected = np.einsum("wbmk,wbnk->wbmn", *values) + start
    assert (np.abs(actual - expected) <= 0.51 * unit("f32", expected)).all()
