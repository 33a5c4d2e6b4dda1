"""gfx950's own vector instructions, assembled by LLVM, against ml_dtypes and Python's integers."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from emulator_machine import Machine, machine_for

SMALL: dict[str, Any] = {
    "fp8": ml_dtypes.float8_e4m3fn,
    "bf8": ml_dtypes.float8_e5m2,
    "fp4": ml_dtypes.float4_e2m1fn,
}
WIDE: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
# Scales whose mantissa must not count, and their powers of two.
SCALES = np.array([1.0, 1.75, 0.25, 0.3, 8.0, 15.9, 2.0**-20, 2.0**20], np.float32)
POWERS = np.array([0, 0, -2, -2, 3, 3, -20, 20])
SATURATE = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\n"


def bits(values: np.ndarray) -> np.ndarray:
    return values.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[values.dtype.itemsize])


def inputs(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """(values of a wide type, exponents of their scales): what is in range after scaling, and some
    that is not.
    """
    random = np.random.default_rng(5)
    plain = random.standard_normal(500) * np.exp2(random.integers(-9, 9, 500))
    edges = [0.0, -0.0, 0.25, 0.75, 1.25, 2.5, 3.5, 5.0, 6.0, 7.0, 448.0, -464.0, 57344.0, 61440.0]
    values = np.concatenate([edges, plain])
    scale = np.arange(values.size) % len(SCALES)
    scaled = values * np.exp2(POWERS[scale].astype(np.float64))
    if kind == "f16":
        scaled = np.clip(scaled, -65504, 65504)
    return scaled.astype(np.float32).astype(WIDE[kind]), scale


def encoded(values: np.ndarray, scale: np.ndarray, small: str, *, saturate: bool) -> np.ndarray:
    """The codes that ml_dtypes gives for value / 2^power."""
    exact = values.astype(np.float64) / np.exp2(POWERS[scale].astype(np.float64))
    if saturate:
        largest = float(ml_dtypes.finfo(SMALL[small]).max)
        exact = np.clip(exact, -largest, largest)
    return exact.astype(np.float32).astype(SMALL[small]).view(np.uint8)


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("small", SMALL)
def test_to_small(small: str, wide: str, saturate: bool) -> None:
    values, scale = inputs(wide)
    other = values[::-1].copy()
    want = [encoded(v, scale, small, saturate=saturate).astype(np.uint32) for v in (values, other)]
    columns = [bits(v).astype(np.uint32) for v in (values, other)]
    scales = bits(SCALES)[scale]
    if wide == "f32":
        m = machine_for("gfx950", *columns, scales, dtype=np.uint32)
        operands = "v1, v2, v3"
    else:
        m = machine_for("gfx950", columns[0] | columns[1] << 16, scales, dtype=np.uint32)
        operands = "v1, v2"
    count = values.size
    m.v[10:12] = 0xA5A5A5A5
    where = ["0,0,0,0", "0,0,0,1"] if small != "fp4" else ["0,0,1,0", "0,0,1,1"]
    if wide != "f32":  # one source fewer
        where = ["0,0,0", "0,0,1"] if small != "fp4" else ["0,0,1,0", "0,0,1,1"]
    text = SATURATE if saturate else ""
    for i, select in enumerate(where):
        text += f"v_cvt_scalef32_pk_{small}_{wide} v{10 + i}, {operands} op_sel:[{select}]\n"
    m.run(text)
    width = 4 if small == "fp4" else 8
    packed = want[0] | want[1] << width
    first, second = (1, 3) if small == "fp4" else (0, 1)
    keep = np.uint32(0xA5A5A5A5)
    for register, place in ((10, first), (11, second)):
        at = np.uint32(2 * width * place)
        mask = np.uint32(((1 << 2 * width) - 1) << int(at))
        np.testing.assert_array_equal(m.v[register][:count], keep & ~mask | packed << at)


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("small", SMALL)
def test_pairs_from_small(small: str, wide: str) -> None:
    width = 4 if small == "fp4" else 8
    codes = np.array(list(itertools.product(range(1 << width), [0, 3, 7, 12])), np.uint32)
    low, high = codes[:, 0], codes[:, 1]
    scale = np.arange(len(low)) % len(SCALES)
    place = 1  # the upper half, or the second byte
    m = machine_for(
        "gfx950", (low | high << width) << (2 * width * place), bits(SCALES)[scale], dtype=np.uint32
    )
    m.v[10:12] = 0
    m.run(f"v_cvt_scalef32_pk_{wide}_{small} v[10:11], v1, v2 op_sel:[1,0,0]\n"
          if wide == "f32" else
          f"v_cvt_scalef32_pk_{wide}_{small} v10, v1, v2 op_sel:[1,0,0]\n")  # fmt: skip
    count = len(low)
    if wide == "f32":
        got = [bits_as(m.v[10 + i][:count], np.float32) for i in range(2)]
    else:
        got = [bits_as((m.v[10][:count] >> 16 * i).astype(np.uint16), WIDE[wide]) for i in range(2)]
    for half, column in zip(got, (low, high), strict=True):
        compare(half, column, scale, small, wide)


@pytest.mark.parametrize("wide", ["f32", "f16"])
@pytest.mark.parametrize("small", ["fp8", "bf8"])
def test_single_from_small(small: str, wide: str) -> None:
    codes = np.arange(256, dtype=np.uint32)
    scale = np.arange(256) % len(SCALES)
    m = machine_for("gfx950", codes << 16, bits(SCALES)[scale], dtype=np.uint32)
    m.v[10] = 0xA5A5A5A5
    high = wide == "f16"
    m.run(f"v_cvt_scalef32_{wide}_{small} v10, v1, v2 op_sel:[0,1,{int(high)}]\n")
    got = m.v[10][:256]
    if high:
        np.testing.assert_array_equal(got & 0xFFFF, 0xA5A5)
        got = (got >> 16).astype(np.uint16)
    compare(bits_as(got, WIDE[wide]), codes, scale, small, wide)


def bits_as(codes: np.ndarray, kind: Any) -> np.ndarray:
    return np.ascontiguousarray(codes).view(kind)


def compare(got: np.ndarray, codes: np.ndarray, scale: np.ndarray, small: str, wide: str) -> None:
    exact = codes.astype(np.uint8).view(SMALL[small]).astype(np.float64)
    exact = exact * np.exp2(POWERS[scale].astype(np.float64))
    with np.errstate(over="ignore"):
        want = exact.astype(np.float32).astype(WIDE[wide])
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("table", [0x00, 0xFF, 0x80, 0x96, 0xCA, 0x17])
def test_bit_operations_of_16_bits(table: int) -> None:
    m = Machine("gfx950")
    random = np.random.default_rng(table)
    for register in (1, 2, 3, 10):
        m.v[register] = random.integers(0, 1 << 32, m.size, dtype=np.uint32)
    a, b, c = (m.v[i].copy() for i in (1, 2, 3))
    before = m.v[10].copy()
    m.run(
        f"v_bitop3_b16 v11, v1, v2, v3 bitop3:{table}\n"
        f"v_bitop3_b16 v10, v1, v2, v3 bitop3:{table} op_sel:[1,0,1,1]\n"
    )

    def expected(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        out = np.zeros_like(x)
        for bit in range(16):
            index = (x >> bit & 1) << 2 | (y >> bit & 1) << 1 | (z >> bit & 1)
            out |= (table >> index & 1).astype(np.uint32) << bit
        return out

    np.testing.assert_array_equal(m.v[11], expected(a, b, c))
    upper = expected(a >> 16, b, c >> 16)
    np.testing.assert_array_equal(m.v[10], before & 0xFFFF | upper << 16)
