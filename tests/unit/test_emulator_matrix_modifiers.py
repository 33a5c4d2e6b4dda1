"""Matrix instructions: broadcasts, negation, halves, denormals, special values and errors."""

from __future__ import annotations

import numpy as np
import pytest
from matrix_case import WAVES, Case, pack, unpack, value

from pumice.emulator.matrix import Modifiers, matrix_multiply
from pumice.emulator.matrix_layouts import input_place, output_place
from pumice.emulator.matrix_table import instruction
from pumice.errors import DeviceError, UnsupportedError, UsageError


@pytest.mark.parametrize(("cbsz", "abid"), [(1, 0), (1, 1), (2, 3), (4, 13)])
def test_a_block_is_broadcast(cbsz: int, abid: int) -> None:
    case = Case("gfx942", "v_mfma_f32_4x4x4_16b_f16", 64)
    a, b, c = case.values()
    source = [block - block % (1 << cbsz) + abid for block in range(16)]
    case.check(case.run(cbsz=cbsz, abid=abid), np.einsum("wbmk,wbnk->wbmn", a[:, source], b) + c)


@pytest.mark.parametrize(("blgp", "source"), [(1, [0, 0]), (2, [1, 1])])
def test_half_of_b_is_broadcast(blgp: int, source: list[int]) -> None:
    """32x32 with two blocks: a block of B is half of the lanes."""
    case = Case("gfx90a", "v_mfma_f32_32x32x4_2b_bf16", 64)
    a, b, c = case.values()
    case.check(case.run(blgp=blgp), np.einsum("wbmk,wbnk->wbmn", a, b[:, source]) + c)


@pytest.mark.parametrize(
    ("blgp", "source"), [(3, [1, 2, 3, 0]), *[(4 + g, [g] * 4) for g in range(4)]]
)
def test_groups_of_b_move(blgp: int, source: list[int]) -> None:
    """16x16 with four blocks: a block of B is 16 lanes."""
    case = Case("gfx942", "v_mfma_f32_16x16x1_4b_f32", 64)
    a, b, c = case.values()
    case.check(case.run(blgp=blgp), np.einsum("wbmk,wbnk->wbmn", a, b[:, source]) + c)


def test_f64_negation_comes_with_gfx942() -> None:
    for blgp in range(8):
        case = Case("gfx942", "v_mfma_f64_16x16x4_f64", 64, blgp)
        a, b, c = case.values()
        signs = [-1 if blgp >> bit & 1 else 1 for bit in range(3)]
        expected = np.einsum("wbmk,wbnk->wbmn", signs[0] * a, signs[1] * b) + signs[2] * c
        case.check(case.run(blgp=blgp), expected)


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
@pytest.mark.parametrize(("neg", "neg_hi"), [(1, 0), (0, 1), (3, 2), (4, 0), (0, 4), (7, 7)])
def test_wmma_negation(arch: str, neg: int, neg_hi: int) -> None:
    case = Case(arch, "v_wmma_f32_16x16x16_f16", 32)
    values = case.values()
    for bit in range(2):
        values[bit][..., 0::2] *= -1 if neg >> bit & 1 else 1
        values[bit][..., 1::2] *= -1 if neg_hi >> bit & 1 else 1
    a, b, c = values
    c = np.abs(c) if neg_hi & 4 else c
    c = -c if neg & 4 else c
    case.check(case.run(neg=neg, neg_hi=neg_hi), np.einsum("wbmk,wbnk->wbmn", a, b) + c)


@pytest.mark.parametrize("half", [0, 1])
def test_rdna3_keeps_the_other_half(half: int) -> None:
    case = Case("gfx1100", "v_wmma_f16_16x16x16_f16", 32)
    place = output_place(case.spec, case.arch, 32, half)
    a, b, c = (
        pack(codes, p, 32) for codes, p in zip(case.codes, [*case.places[:2], place], strict=True)
    )
    modifiers = Modifiers("gfx1100", 32, opsel=4 * half)
    d = matrix_multiply(case.name, a, b, c, modifiers=modifiers)
    x, y, z = case.values()
    case.check(value(unpack(d, place), "f16"), np.einsum("wbmk,wbnk->wbmn", x, y) + z)
    np.testing.assert_array_equal(d.view(np.uint16)[..., 1 - half :: 2], 0xA5A5)


@pytest.mark.parametrize("operand", ["A", "B"])
def test_rdna3_copies_must_agree(operand: str) -> None:
    case = Case("gfx1100", "v_wmma_f32_16x16x16_bf16", 32)
    registers = [pack(c, p, 32) for c, p in zip(case.codes, case.places, strict=True)]
    registers["AB".index(operand)][2, 5, 16 + 9] ^= 1
    with pytest.raises(DeviceError, match=f"{operand} of .* lane 25 .* register 5 of wave 2"):
        matrix_multiply(case.name, *registers, modifiers=Modifiers("gfx1100"))
    ignored = Modifiers("gfx1100", check_copies=False)
    matrix_multiply(case.name, *registers, modifiers=ignored)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942"])
def test_denormals_count_as_zeros_on_gfx90a_only(arch: str, kind: str) -> None:
    case = Case(arch, f"v_mfma_f32_16x16x16_{kind}", 64)
    case.codes[0][:] = 1  # the smallest denormal
    case.codes[2][:] = 1
    a, b, _ = case.values()
    result = case.run()
    if arch == "gfx90a":
        assert (result == 0).all()
    else:
        smallest = 2.0**-149
        expected = np.einsum("wbmk,wbnk->wbmn", a, b) + smallest
        assert (
            np.abs(result - expected) <= np.maximum(smallest, np.abs(expected) * 2.0**-24)
        ).all()
        assert (result != 0).any()


def test_xf32_drops_13_bits() -> None:
    spec = instruction("v_mfma_f32_16x16x8_xf32")
    random = np.random.default_rng(4)
    a = random.standard_normal((WAVES, 1, 16, 8)).astype(np.float32)
    b = random.standard_normal((WAVES, 1, 16, 8)).astype(np.float32)
    places = [input_place(spec, "gfx942", 64, operand) for operand in "ab"]
    registers = [pack(x.view(np.uint32), p, 64) for x, p in zip((a, b), places, strict=True)]
    zero = np.zeros((1, 1, 1), np.uint32)
    d = matrix_multiply(
        "V_MFMA_F32_16X16X8_XF32", *registers, zero, modifiers=Modifiers("gfx942", 64)
    )
    actual = unpack(d, output_place(spec, "gfx942", 64)).view(np.float32)
    short = [
        np.trunc(x / np.exp2(e := np.floor(np.log2(np.abs(x)))) * 1024) / 1024 * np.exp2(e)
        for x in (a.astype(np.float64), b.astype(np.float64))
    ]
    np.testing.assert_array_equal(actual, np.einsum("wbmk,wbnk->wbmn", *short).astype(np.float32))


def test_not_a_number_and_infinity_travel() -> None:
    case = Case("gfx1201", "v_wmma_f32_16x16x16_f16", 32)
    case.codes[0][0, 0, 3, 5] = 0x7C01
    case.codes[0][1, 0, 4, 0] = 0x7C00
    case.codes[1][1, 0, :, 0] = np.float16(2).view(np.uint16)
    result = case.run()
    assert np.isnan(result[0, 0, 3]).all() and np.isfinite(np.delete(result[0, 0], 3, 0)).all()
    assert (result[1, 0, 4] == np.inf).all() and np.isfinite(result[2]).all()


def test_a_constant_is_broadcast() -> None:
    case = Case("gfx1201", "v_wmma_f32_16x16x16_bf16", 32)
    a, b = (pack(c, p, 32) for c, p in zip(case.codes[:2], case.places[:2], strict=True))
    one = np.full((1, 1, 1), 0x3F800000, np.uint32)
    d = matrix_multiply(case.name, a, b, one, modifiers=Modifiers("gfx1201"))
    x, y, _ = case.values()
    case.check(value(unpack(d, case.places[2]), "f32"), np.einsum("wbmk,wbnk->wbmn", x, y) + 1)


def test_no_wave() -> None:
    empty = np.zeros((0, 8, 32), np.uint32)
    d = matrix_multiply(
        "V_WMMA_F32_16X16X16_F16", empty, empty, empty, modifiers=Modifiers("gfx1100")
    )
    assert d.shape == (0, 8, 32)


@pytest.mark.parametrize(
    ("name", "modifiers", "match"),
    [
        ("v_wmma_f32_16x16x16_f16", Modifiers("gfx942", 64), "not an instruction of gfx942"),
        ("v_mfma_f32_16x16x16_f16", Modifiers("gfx1100", 32), "not an instruction of gfx1100"),
        ("v_smfmac_f32_16x16x32_f16", Modifiers("gfx90a", 64), "not an instruction of gfx90a"),
        ("v_mfma_f32_16x16x16_f16", Modifiers("gfx942", 32), "32 lanes; allowed"),
        ("v_mfma_f32_16x16x16_f16", Modifiers("gfx942", 64, cbsz=1), "cbsz 1"),
        ("v_mfma_f32_4x4x4_16b_f16", Modifiers("gfx942", 64, cbsz=1, abid=2), "abid 2"),
        ("v_mfma_f32_16x16x128_f8f6f4", Modifiers("gfx950", 64, blgp=5), "F8F6F4 format 5"),
    ],
)
def test_what_is_refused(name: str, modifiers: Modifiers, match: str) -> None:
    zero = np.zeros((1, 8, modifiers.wave), np.uint32)
    with pytest.raises(UnsupportedError, match=match):
        matrix_multiply(name, zero, zero, zero, modifiers=modifiers)


def test_misshapen_operands_are_refused() -> None:
    good, short = np.zeros((1, 8, 32), np.uint32), np.zeros((1, 7, 32), np.uint32)
    modifiers = Modifiers("gfx1100")
    with pytest.raises(UsageError, match=r"B of .* \(1, 7, 32\)"):
        matrix_multiply("v_wmma_f32_16x16x16_f16", good, short, good, modifiers=modifiers)
    narrow = np.zeros((1, 8, 64), np.uint32)
    with pytest.raises(UsageError, match="A of"):
        matrix_multiply("v_wmma_f32_16x16x16_f16", narrow, good, good, modifiers=modifiers)
    with pytest.raises(UsageError, match="needs index"):
        matrix_multiply(
            "v_swmmac_f32_16x16x32_f16", good, good, good, modifiers=Modifiers("gfx1201")
        )
