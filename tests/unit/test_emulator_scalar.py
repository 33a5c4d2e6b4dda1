"""Scalar instructions on edge values, with SCC, against Python's integers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from emulator_machine import ARCHS, Machine

from pumice.errors import KernelFaultError

WORDS = [
    0,
    1,
    2,
    31,
    32,
    33,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0x12345678,
    0xFFFFFFFF,
]
PAIRS = list(itertools.product(WORDS, WORDS))
MASK = 0xFFFFFFFF
FULL = 0xFFFFFFFFFFFFFFFF


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def overflows(x: int) -> bool:
    return not -(2**31) <= x < 2**31


Result = tuple[int, bool | None]  # value, SCC (None: unchanged)


def nonzero(x: int) -> Result:
    return x & MASK, x & MASK != 0


OPERATIONS: dict[str, Callable[[int, int], Result]] = {
    "s_add_u32": lambda a, b: (a + b, a + b > MASK),
    "s_sub_u32": lambda a, b: (a - b, b > a),
    "s_add_i32": lambda a, b: (a + b, overflows(signed(a) + signed(b))),
    "s_sub_i32": lambda a, b: (a - b, overflows(signed(a) - signed(b))),
    "s_and_b32": lambda a, b: nonzero(a & b),
    "s_or_b32": lambda a, b: nonzero(a | b),
    "s_xor_b32": lambda a, b: nonzero(a ^ b),
    "s_andn2_b32": lambda a, b: nonzero(a & ~b),
    "s_orn2_b32": lambda a, b: nonzero(a | ~b),
    "s_nand_b32": lambda a, b: nonzero(~(a & b)),
    "s_nor_b32": lambda a, b: nonzero(~(a | b)),
    "s_xnor_b32": lambda a, b: nonzero(~(a ^ b)),
    "s_lshl_b32": lambda a, b: nonzero(a << (b & 31)),
    "s_lshr_b32": lambda a, b: nonzero(a >> (b & 31)),
    "s_ashr_i32": lambda a, b: nonzero(signed(a) >> (b & 31)),
    "s_mul_i32": lambda a, b: (a * b, None),
    "s_mul_hi_u32": lambda a, b: (a * b >> 32, None),
    "s_mul_hi_i32": lambda a, b: (signed(a) * signed(b) >> 32, None),
    "s_min_i32": lambda a, b: (min(signed(a), signed(b)), signed(a) < signed(b)),
    "s_max_u32": lambda a, b: (max(a, b), a >= b),
    "s_bfm_b32": lambda a, b: (((1 << (a & 31)) - 1) << (b & 31), None),
    "s_absdiff_i32": lambda a, b: nonzero(abs(signed((a - b) & 0xFFFFFFFF))),  # wraps
    "s_lshl2_add_u32": lambda a, b: ((a << 2) + b, (a << 2) + b > MASK),
    "s_pack_lh_b32_b16": lambda a, b: ((a & 0xFFFF) | (b >> 16) << 16, None),
}


@pytest.mark.parametrize("arch", ARCHS)
def test_two_operands(arch: str) -> None:
    m = Machine(arch, len(PAIRS))
    m.s[:, 4], m.s[:, 5] = zip(*PAIRS, strict=True)
    for name, function in OPERATIONS.items():
        m.state.scc[...] = True
        m.run(f"{name} s8, s4, s5")
        want = [function(a, b) for a, b in PAIRS]
        np.testing.assert_array_equal(m.s[:, 8], [v & MASK for v, _ in want], err_msg=name)
        scc = [True if c is None else c for _, c in want]
        np.testing.assert_array_equal(m.state.scc[:, 0], scc, err_msg=name)


@pytest.mark.parametrize("arch", ARCHS)
def test_fields_counts_and_extensions(arch: str) -> None:
    m = Machine(arch, len(WORDS))
    m.s[:, 4] = WORDS
    clz, ctz = ("s_flbit_i32_b32", "s_ff1_i32_b32") if arch == "gfx942" else (
        "s_clz_i32_u32", "s_ctz_i32_b32"
    )  # fmt: skip
    m.run(
        "s_bfe_u32 s8, s4, 0x80004\n s_bfe_i32 s9, s4, 0x80004\n s_bcnt1_i32_b32 s10, s4\n"
        f"s_brev_b32 s11, s4\n {clz} s12, s4\n {ctz} s13, s4\n"
        "s_sext_i32_i8 s14, s4\n s_sext_i32_i16 s15, s4\n s_abs_i32 s16, s4\n s_not_b32 s17, s4"
    )
    for wave, a in enumerate(WORDS):
        field = a >> 4 & 255
        want = [
            field, signed(field, 8) & MASK, bin(a).count("1"), int(f"{a:032b}"[::-1], 2),
            (32 - a.bit_length() if a else -1) & MASK,
            ((a & -a).bit_length() - 1 if a else -1) & MASK,
            signed(a, 8) & MASK, signed(a, 16) & MASK, abs(signed(a)) & MASK, ~a & MASK,
        ]  # fmt: skip
        assert list(m.s[wave, 8:18]) == want, hex(a)


@pytest.mark.parametrize("arch", ARCHS)
def test_sixty_four_bits(arch: str) -> None:
    m = Machine(arch, len(PAIRS))
    m.s[:, 4], m.s[:, 5] = zip(*PAIRS, strict=True)
    m.s[:, 6], m.s[:, 7] = 37, 0x80000000
    m.run(
        "s_lshl_b64 s[8:9], s[4:5], s6\n s_lshr_b64 s[10:11], s[4:5], s6\n"
        "s_ashr_i64 s[12:13], s[4:5], s6\n s_and_b64 s[14:15], s[4:5], s[6:7]\n"
        "s_add_u32 s16, s4, s6\n s_addc_u32 s17, s5, s7\n s_cselect_b32 s20, 1, 0\n"
        "s_sub_u32 s18, s4, s6\n s_subb_u32 s19, s5, s7\n s_bfe_u64 s[22:23], s[4:5], 0x240010"
    )
    other = 37 | 0x80000000 << 32
    for wave, (low, high) in enumerate(PAIRS):
        a = low | high << 32
        got = [int(m.s[wave, r]) | int(m.s[wave, r + 1]) << 32 for r in (8, 10, 12, 14, 16, 18, 22)]
        assert got == [
            a << 37 & FULL, a >> 37, signed(a, 64) >> 37 & FULL, a & other,
            a + other & FULL, a - other & FULL, a >> 16 & ((1 << 36) - 1),
        ]  # fmt: skip
        assert m.s[wave, 20] == (a + other > FULL)


@pytest.mark.parametrize("arch", ARCHS)
def test_compares_moves_and_constants(arch: str) -> None:
    m = Machine(arch, len(PAIRS))
    m.s[:, 4], m.s[:, 5] = zip(*PAIRS, strict=True)
    tests: dict[str, Callable[[int, int], bool]] = {
        "eq_u32": lambda a, b: a == b, "lg_u32": lambda a, b: a != b,
        "gt_u32": lambda a, b: a > b, "le_u32": lambda a, b: a <= b,
        "lt_i32": lambda a, b: signed(a) < signed(b), "ge_i32": lambda a, b: signed(a) >= signed(b),
    }  # fmt: skip
    for name, test in tests.items():
        m.run(f"s_cmp_{name} s4, s5\n s_cselect_b32 s8, s4, s5")
        want = [test(a, b) for a, b in PAIRS]
        np.testing.assert_array_equal(m.state.scc[:, 0], want)
        np.testing.assert_array_equal(
            m.s[:, 8], [a if w else b for (a, b), w in zip(PAIRS, want, strict=True)]
        )
    m.run(
        "s_movk_i32 s8, -5\n s_mov_b32 s9, 0x12345678\n s_mov_b32 s10, -16\n s_mov_b32 s11, 2.0\n"
        "s_bitset1_b32 s12, 7\n s_bitcmp1_b32 s12, 7"
    )
    assert [int(x) for x in m.s[0, 8:12]] == [MASK - 4, 0x12345678, MASK - 15, 0x40000000]
    assert m.state.scc.all() and m.s[0, 12] == 128
    m.run("s_bitcmp0_b32 s12, 7\n s_cmov_b32 s9, 1")
    assert not m.state.scc.any() and m.s[0, 9] == 0x12345678


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_exec_and_the_null_register(arch: str) -> None:
    m = Machine(arch, 2)
    m.s[:, 4] = [0x0F0F0F0F, 0]
    m.run("s_and_saveexec_b32 s6, s4")
    assert list(m.s[:, 6]) == [MASK, MASK] and list(m.s[:, 126]) == [0x0F0F0F0F, 0]
    assert list(m.state.scc[:, 0]) == [True, False]
    m.v[1] = 1
    m.run("v_mov_b32 v1, 9")
    assert list(m.v[1][:8]) == [9] * 4 + [1] * 4 and set(m.v[1][32:]) == {1}
    m.run("s_xor_b32 exec_lo, exec_lo, s6\n v_mov_b32 v1, 5")
    assert list(m.v[1][:8]) == [9] * 4 + [5] * 4 and set(m.v[1][32:]) == {5}
    m.run("s_mov_b32 null, 77\n s_mov_b32 s9, null")
    assert m.s[0, 9] == 0


def test_exec_of_sixty_four_lanes() -> None:
    m = Machine("gfx942", 1)
    m.s[:, 4], m.s[:, 5] = 3, 1
    m.run("s_and_saveexec_b64 s[6:7], s[4:5]\n v_mov_b32 v1, 9\n s_or_b64 exec, exec, s[6:7]")
    assert np.flatnonzero(m.v[1] == 9).tolist() == [0, 1, 32]
    m.run("v_cmp_eq_u32 vcc, 9, v1\n s_andn2_b64 s[8:9], exec, vcc\n s_bcnt1_i32_b64 s10, s[8:9]")
    assert m.s[0, 10] == 61


@pytest.mark.parametrize("arch", ["gfx1151", "gfx1201"])
def test_scalar_floats(arch: str) -> None:
    m = Machine(arch, 3)
    a, b = np.array([1.5, -2.0, 65504.0], np.float32), np.array([0.25, 3.0, 65504.0], np.float32)
    m.s[:, 4], m.s[:, 5] = a.view(np.uint32), b.view(np.uint32)
    m.s[:, 15] = np.float32(1).view(np.uint32)
    m.run(
        "s_add_f32 s6, s4, s5\n s_mul_f32 s7, s4, s5\n s_fmac_f32 s15, s4, s5\n"
        "s_cvt_f16_f32 s8, s4\n s_cvt_f16_f32 s9, s5\n s_add_f16 s10, s8, s9\n"
        "s_cvt_f32_f16 s11, s10\n s_cvt_i32_f32 s12, s4\n s_floor_f32 s13, s4\n"
        "s_cmp_lt_f32 s4, s5\n s_cselect_b32 s14, 1, 0\n s_cvt_pk_rtz_f16_f32 s16, s4, s5\n"
        "s_cvt_hi_f32_f16 s17, s16"
    )
    rows = m.s.view(np.float32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(rows[:, 6], a + b)
        np.testing.assert_array_equal(rows[:, 7], a * b)
        np.testing.assert_array_equal(rows[:, 11], (a + b).astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(rows[:, 15], (a.astype(float) * b + 1).astype(np.float32))
    assert list(m.s[:, 12].view(np.int32)) == [1, -2, 65504]
    np.testing.assert_array_equal(rows[:, 13], np.floor(a))
    assert list(m.s[:, 14]) == [0, 1, 0]
    np.testing.assert_array_equal(rows[:, 17], b)


def test_transcendental_functions_of_scalars() -> None:
    m = Machine("gfx1201", 2)
    m.s[:, 4] = np.array([4.0, 0.25], np.float32).view(np.uint32)
    m.s[:, 5] = 0xABCD4400  # 4 as float16
    m.run(
        "v_s_sqrt_f32 s8, s4\n v_s_rcp_f32 s9, s4\n v_s_log_f32 s10, s4\n v_s_rsq_f32 s11, -s4\n"
        "v_s_exp_f16 s12, s5"
    )
    rows = m.s.view(np.float32)
    assert list(rows[:, 8]) == [2, 0.5] and list(rows[:, 9]) == [0.25, 4]
    assert list(rows[:, 10]) == [2, -2] and np.isnan(rows[:, 11]).all()
    assert list(m.s[:, 12] & 0xFFFF) == [0x4C00, 0x4C00]  # 16


@pytest.mark.parametrize("arch", ARCHS)
def test_masks_of_quads_and_doubled_bits(arch: str) -> None:
    m = Machine(arch, 1)
    m.s[:, 4], m.s[:, 5] = 0x80F0_0001, 0x0100_0000
    m.run(
        "s_quadmask_b32 s8, s4\n s_quadmask_b64 s[10:11], s[4:5]\n"
        "s_bitreplicate_b64_b32 s[12:13], s4\n s_wqm_b32 s14, s4"
    )
    assert m.s[0, 8] == 0b10100001 and m.s[0, 10] == 0b10100001 | 1 << 14 and m.s[0, 11] == 0
    doubled = int("".join(2 * bit for bit in f"{0x80F00001:032b}"), 2)
    assert int(m.s[0, 12]) | int(m.s[0, 13]) << 32 == doubled
    assert m.s[0, 14] == 0xF0F0_000F


def test_a_trap_ends_the_launch() -> None:
    with pytest.raises(KernelFaultError, match="trapped: s_trap"):
        Machine("gfx1100").run("s_trap 2")
