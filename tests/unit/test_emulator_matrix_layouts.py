"""Registers of matrix operands against AMD's published calculator, and against each other."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from pumice.emulator.matrix_layouts import index_place, input_place, output_place
from pumice.emulator.matrix_operands import lane_of_b
from pumice.emulator.matrix_table import BITS, instruction
from pumice.errors import UnsupportedError

SAMPLES = [
    line.split()
    for line in Path(__file__).with_name("matrix_register_samples.txt").read_text().splitlines()
    if not line.startswith("#")
]
INSTRUCTIONS = sorted({(arch, name, int(wave)) for arch, name, wave, *_ in SAMPLES})
GFX950 = [
    ("gfx950", f"v_mfma_{name}", 64)
    for name in (
        "f32_16x16x32_f16",
        "f32_16x16x32_bf16",
        "f32_32x32x16_f16",
        "f32_32x32x16_bf16",
        "i32_16x16x64_i8",
        "i32_32x32x32_i8",
        "f32_16x16x128_f8f6f4",
        "scale_f32_32x32x64_f8f6f4",
    )
]


def registers_and_bits(text: str, bits: int) -> tuple[int, int]:
    """("v1.[31:16]", 16) → (1, 1); a pair "v[3:2]" → (1, 0): as `Place` counts."""
    pair = re.fullmatch(r"v\[(\d+):(\d+)\]", text)
    if pair:
        return int(pair[2]) // 2, 0
    match = re.fullmatch(r"v(\d+)(?:\.\[(\d+):(\d+)\])?", text)
    assert match, text
    return int(match[1]), int(match[3] or 0) // bits


def test_the_calculators_registers() -> None:
    assert len(SAMPLES) > 500
    for arch, name, wave_, operand, modifier, *rest in SAMPLES:
        block, row, column = map(int, rest[:3])
        spec, wave = instruction(name), int(wave_)
        if operand == "index":
            place = index_place(spec, arch, wave, int(modifier))
            at = (row, 2 * (column // 4))
            expected = registers_and_bits(rest[3], 2)
        elif operand == "d":
            place, at = output_place(spec, arch, wave), (block, row, column)
            expected = registers_and_bits(rest[3], BITS[spec.out])
        else:
            place = input_place(spec, arch, wave, operand)
            at = (block, row, column) if operand == "a" else (block, column, row)
            expected = registers_and_bits(rest[3], BITS[spec.a])
        lane = place.lane[at]
        if operand == "b" and modifier != "-":
            lane = lane_of_b(int(modifier))[lane]
        actual = (place.register[at], place.slot[at], lane)
        assert actual == (*expected, int(rest[4])), (arch, name, wave, operand, modifier, at)


@pytest.mark.parametrize(("arch", "name", "wave"), INSTRUCTIONS + GFX950)
def test_every_element_has_its_own_place(arch: str, name: str, wave: int) -> None:
    spec = instruction(name)
    assert spec.m * spec.n * spec.blocks * BITS[spec.out] % (32 * wave) == 0 or arch == "gfx1100"
    a, b = (input_place(spec, arch, wave, operand) for operand in "ab")
    d = output_place(spec, arch, wave)
    stored = spec.k // 2 if spec.sparse else spec.k
    assert a.register.shape == (spec.blocks, spec.m, stored)
    assert b.register.shape == (spec.blocks, spec.n, spec.k)
    assert d.register.shape == (spec.blocks, spec.m, spec.n)
    for place in (a, b, d):
        flat = place.flat(wave)
        assert len(np.unique(flat)) == flat.size
        assert place.lane.min() == 0 and place.lane.max() < wave // place.copies
    if d.bits != 16 or arch != "gfx1100":  # no holes
        assert d.flat(wave).max() == d.register.size - 1


@pytest.mark.parametrize("half", [0, 1])
def test_rdna3_writes_16_bit_results_into_one_half(half: int) -> None:
    place = output_place(instruction("v_wmma_f16_16x16x16_f16"), "gfx1100", 32, half)
    assert set(place.slot.flat) == {half}
    assert place.registers == 8


@pytest.mark.parametrize("bits", [8, 6, 4])
def test_f8f6f4_takes_as_many_registers_as_bits(bits: int) -> None:
    for name in ("v_mfma_f32_16x16x128_f8f6f4", "v_mfma_f32_32x32x64_f8f6f4"):
        place = input_place(instruction(name), "gfx950", 64, "a", bits)
        assert place.registers == bits
        assert (np.bincount(place.lane.ravel()) == 32).all()


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("v_mfma_f32_32x32x4f16", "V_MFMA_F32_32X32X4_2B_F16"),
        ("v_mfma_f32_32x32x8f16", "V_MFMA_F32_32X32X8_F16"),
        ("v_mfma_f32_16x16x1f32", "V_MFMA_F32_16X16X1_4B_F32"),
        ("v_mfma_f32_16x16x4f32", "V_MFMA_F32_16X16X4_F32"),
        ("v_mfma_f32_16x16x4bf16_1k", "V_MFMA_F32_16X16X4_4B_BF16"),
        ("v_mfma_f32_16x16x16bf16_1k", "V_MFMA_F32_16X16X16_BF16"),
        ("v_mfma_f32_32x32x4bf16", "V_MFMA_F32_32X32X4_BF16"),
        ("v_mfma_i32_16x16x16i8", "V_MFMA_I32_16X16X16_I8"),
        ("v_mfma_f64_4x4x4f64", "V_MFMA_F64_4X4X4_4B_F64"),
    ],
)
def test_older_spellings(older: str, newer: str) -> None:
    assert instruction(older) == instruction(newer)


@pytest.mark.parametrize(
    "name", ["v_mfma_f32_16x16x16", "v_add_f32", "v_wmma_f32_16x16x16_f17", ""]
)
def test_unknown_instructions_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedError, match="is not known"):
        instruction(name)
