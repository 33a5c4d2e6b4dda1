"""Integer and bit instructions on edge values, against Python's integers."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from emulator_machine import ARCHS, Machine, machine_for

WORDS = np.array(
    [0, 1, 2, 3, 31, 32, 33, 63, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x12345678, 0x7FFFFFFF,
     0x80000000, 0x80000001, 0xDEADBEEF, 0xFFFFFFFE, 0xFFFFFFFF], np.uint32,
)  # fmt: skip
PAIRS = list(itertools.product([int(w) for w in WORDS], repeat=2))
RNG = np.random.default_rng(3)
TRIPLES = [tuple(int(x) for x in RNG.choice(WORDS, 3)) for _ in range(400)]
MASK = 0xFFFFFFFF


def signed(x: int, bits: int = 32) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def check(machine: Machine, row: int, want: list[int], name: str) -> None:
    got = machine.v[row][: len(want)]
    np.testing.assert_array_equal(got, np.array([w & MASK for w in want], np.uint32), err_msg=name)


def columns(rows: list[tuple[int, ...]]) -> list[list[int]]:
    return [list(c) for c in zip(*rows, strict=True)]


def leading_zeros(a: int) -> int:
    return 32 - a.bit_length() if a else -1


def leading_signs(a: int) -> int:
    bits = f"{a:032b}"
    return next((i for i in range(1, 32) if bits[i] != bits[0]), -1)


UNARY: dict[str, Callable[[int], int]] = {
    "v_mov_b32": lambda a: a,
    "v_not_b32": lambda a: ~a,
    "v_bfrev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
}
UNARY_RDNA: dict[str, Callable[[int], int]] = {
    "v_clz_i32_u32": leading_zeros,
    "v_ctz_i32_b32": lambda a: (a & -a).bit_length() - 1 if a else -1,
    "v_cls_i32": leading_signs,
}
CDNA_NAMES = {
    "v_clz_i32_u32": "v_ffbh_u32", "v_ctz_i32_b32": "v_ffbl_b32", "v_cls_i32": "v_ffbh_i32",
    "v_add_nc_u32": "v_add_u32", "v_sub_nc_u32": "v_sub_u32", "v_subrev_nc_u32": "v_subrev_u32",
    "v_add_nc_i32": "v_add_i32", "v_sub_nc_i32": "v_sub_i32",
}  # fmt: skip
BINARY: dict[str, Callable[[int, int], int]] = {
    "v_and_b32": lambda a, b: a & b,
    "v_or_b32": lambda a, b: a | b,
    "v_xor_b32": lambda a, b: a ^ b,
    "v_xnor_b32": lambda a, b: ~(a ^ b),
    "v_lshlrev_b32": lambda a, b: b << (a & 31),
    "v_lshrrev_b32": lambda a, b: b >> (a & 31),
    "v_ashrrev_i32": lambda a, b: signed(b) >> (a & 31),
    "v_add_nc_u32": lambda a, b: a + b,
    "v_sub_nc_u32": lambda a, b: a - b,
    "v_subrev_nc_u32": lambda a, b: b - a,
    "v_mul_lo_u32": lambda a, b: a * b,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": lambda a, b: signed(a) * signed(b) >> 32,
    "v_mul_u32_u24": lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF),
    "v_mul_i32_i24": lambda a, b: signed(a, 24) * signed(b, 24),
    "v_max_i32": lambda a, b: max(signed(a), signed(b)),
    "v_min_i32": lambda a, b: min(signed(a), signed(b)),
    "v_max_u32": max,
    "v_min_u32": min,
    "v_bcnt_u32_b32": lambda a, b: bin(a).count("1") + b,
    "v_bfm_b32": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
}


def sad(a: int, b: int, c: int) -> int:
    return sum(abs((a >> s & 255) - (b >> s & 255)) for s in (0, 8, 16, 24)) + c


def perm(a: int, b: int, s: int) -> int:
    data = (a << 32 | b).to_bytes(8, "little")
    out = 0
    for i in range(4):
        pick = s >> 8 * i & 255
        if pick >= 13:
            byte = 255
        elif pick == 12:
            byte = 0
        elif pick >= 8:
            byte = 255 * (data[2 * (pick - 8) + 1] >> 7)
        else:
            byte = data[pick]
        out |= byte << 8 * i
    return out


TERNARY: dict[str, Callable[[int, int, int], int]] = {
    "v_add3_u32": lambda a, b, c: a + b + c,
    "v_lshl_add_u32": lambda a, b, c: (a << (b & 31)) + c,
    "v_add_lshl_u32": lambda a, b, c: ((a + b) & MASK) << (c & 31),
    "v_lshl_or_b32": lambda a, b, c: a << (b & 31) | c,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c,
    "v_bfe_u32": lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1),
    "v_bfe_i32": lambda a, b, c: signed(signed(a) >> (b & 31), c & 31) if c & 31 else 0,
    "v_bfi_b32": lambda a, b, c: a & b | ~a & c,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31),
    "v_alignbyte_b32": lambda a, b, c: (a << 32 | b) >> 8 * (c & 3),
    "v_perm_b32": perm,
    "v_sad_u8": sad,
    "v_mad_u32_u24": lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c,
    "v_mad_i32_i24": lambda a, b, c: signed(a, 24) * signed(b, 24) + signed(c),
    "v_max3_i32": lambda a, b, c: max(signed(a), signed(b), signed(c)),
    "v_min3_u32": min,
    "v_med3_i32": lambda a, b, c: sorted([signed(a), signed(b), signed(c)])[1],
    "v_med3_u32": lambda a, b, c: sorted([a, b, c])[1],
}


@pytest.mark.parametrize("arch", ARCHS)
def test_vector_operations(arch: str) -> None:
    def spelled(name: str) -> str:
        return CDNA_NAMES.get(name, name) if arch == "gfx942" else name

    words = [int(w) for w in WORDS]
    m = machine_for(arch, words, dtype=np.uint32)
    for name, function in {**UNARY, **UNARY_RDNA}.items():
        m.run(f"{spelled(name)} v10, v1")
        check(m, 10, [function(w) for w in words], name)
    m = machine_for(arch, *columns(PAIRS), dtype=np.uint32)
    for name, function2 in BINARY.items():
        m.run(f"{spelled(name)} v10, v1, v2")
        check(m, 10, [function2(*p) for p in PAIRS], name)
    m = machine_for(arch, *columns(TRIPLES), dtype=np.uint32)
    for name, function3 in TERNARY.items():
        m.run(f"{name} v10, v1, v2, v3")
        check(m, 10, [function3(*t) for t in TRIPLES], name)


@pytest.mark.parametrize("arch", ARCHS)
def test_permutations_with_one_choice_for_all_lanes(arch: str) -> None:
    m = machine_for(arch, *columns(PAIRS), dtype=np.uint32)
    for choice in (0x05040100, 0x07060302, 0x03020100, 0x0C070C01, 0x0B0A0908, 0xFF0D0600):
        m.s[:, 4] = choice
        m.run("v_perm_b32 v10, v1, v2, s4")
        check(m, 10, [perm(a, b, choice) for a, b in PAIRS], hex(choice))
    m.s[:, 4] = np.arange(m.state.waves)  # another choice in every wave
    m.run("v_perm_b32 v10, v1, v2, s4")
    lanes = m.state.lanes
    check(m, 10, [perm(a, b, i // lanes) for i, (a, b) in enumerate(PAIRS)], "by wave")


@pytest.mark.parametrize("arch", ARCHS)
def test_carries(arch: str) -> None:
    m = machine_for(arch, *columns(PAIRS), dtype=np.uint32)
    cdna = arch == "gfx942"
    vcc, s = ("vcc", "s[4:5]") if cdna else ("vcc_lo", "s4")
    add_in, sub_in = ("addc", "subb") if cdna else ("add_co_ci", "sub_co_ci")
    add_in, sub_in = (f"v_{n}_co_u32" if cdna else f"v_{n}_u32" for n in (add_in, sub_in))
    e64 = "_e64" if cdna or arch == "gfx1201" else ""
    m.run(
        f"v_add_co_u32{e64 if cdna else ''} v10, {s}, v1, v2\n"
        f"v_sub_co_u32{e64 if cdna else ''} v11, {vcc}, v1, v2"
    )
    check(m, 10, [a + b for a, b in PAIRS], "add")
    check(m, 11, [a - b for a, b in PAIRS], "sub")
    carries = [a + b > MASK for a, b in PAIRS]
    borrows = [b > a for a, b in PAIRS]
    np.testing.assert_array_equal(m.mask(4)[: len(PAIRS)], carries)
    np.testing.assert_array_equal(m.mask(106)[: len(PAIRS)], borrows)
    m.run(f"{sub_in}_e32 v12, {vcc}, v1, v2, {vcc}\n{add_in}_e64 v13, {s}, v1, v2, {s}")
    check(m, 12, [a - b - c for (a, b), c in zip(PAIRS, borrows, strict=True)], "sub in")
    check(m, 13, [a + b + c for (a, b), c in zip(PAIRS, carries, strict=True)], "add in")
    again = [a + b + c > MASK for (a, b), c in zip(PAIRS, carries, strict=True)]
    np.testing.assert_array_equal(m.mask(4)[: len(PAIRS)], again)


@pytest.mark.parametrize("arch", ARCHS)
def test_wide_products_and_shifts(arch: str) -> None:
    m = machine_for(arch, *columns(TRIPLES), dtype=np.uint32)
    s = "s[4:5]" if arch == "gfx942" else "s4"
    names = ("v_mad_co_u64_u32", "v_mad_co_i64_i32") if arch == "gfx1201" else (
        "v_mad_u64_u32", "v_mad_i64_i32"
    )  # fmt: skip
    m.run(
        f"v_mov_b32 v20, v2\n v_mov_b32 v21, v3\n {names[0]} v[10:11], {s}, v1, v2, v[20:21]\n"
        f"{names[1]} v[12:13], {s}, v1, v2, v[20:21]\n v_lshlrev_b64 v[14:15], v1, v[20:21]\n"
        "v_lshrrev_b64 v[16:17], v1, v[20:21]\n v_ashrrev_i64 v[18:19], v1, v[20:21]"
    )
    full = (1 << 64) - 1

    def pair(row: int) -> list[int]:
        low, high = m.v[row][: len(TRIPLES)], m.v[row + 1][: len(TRIPLES)]
        return [int(x) | int(y) << 32 for x, y in zip(low, high, strict=True)]

    wide = [b | c << 32 for _, b, c in TRIPLES]
    assert pair(10) == [(a * b + w) & full for (a, b, _), w in zip(TRIPLES, wide, strict=True)]
    assert pair(12) == [
        (signed(a) * signed(b) + w) & full for (a, b, _), w in zip(TRIPLES, wide, strict=True)
    ]
    counts = [a & 63 for a, _, _ in TRIPLES]
    assert pair(14) == [w << n & full for w, n in zip(wide, counts, strict=True)]
    assert pair(16) == [w >> n for w, n in zip(wide, counts, strict=True)]
    assert pair(18) == [signed(w, 64) >> n & full for w, n in zip(wide, counts, strict=True)]


@pytest.mark.parametrize("arch", ARCHS)
def test_integer_compares_and_selects(arch: str) -> None:
    m = machine_for(arch, *columns(PAIRS), dtype=np.uint32)
    vcc = "vcc" if arch == "gfx942" else "vcc_lo"
    tests: dict[str, Callable[[int, int], bool]] = {
        "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b, "ne": lambda a, b: a != b, "ge": lambda a, b: a >= b,
    }  # fmt: skip
    for name, test in tests.items():
        for kind, convert in (("u32", int), ("i32", signed)):
            m.run(f"v_cmp_{name}_{kind} {vcc}, v1, v2\n v_cndmask_b32 v10, v1, v2, {vcc}")
            want = [test(convert(a), convert(b)) for a, b in PAIRS]
            np.testing.assert_array_equal(m.mask(106)[: len(PAIRS)], want)
            check(m, 10, [b if w else a for (a, b), w in zip(PAIRS, want, strict=True)], name)


@pytest.mark.parametrize("arch", ARCHS)
def test_packed_sixteen_bit_integers(arch: str) -> None:
    m = machine_for(arch, *columns(TRIPLES), dtype=np.uint32)

    def halves(function: Callable[..., int], *, sign: bool) -> list[int]:
        out = []
        for row in TRIPLES:
            parts = []
            for shift in (0, 16):
                values = [x >> shift & 0xFFFF for x in row]
                parts.append(function(*([signed(v, 16) for v in values] if sign else values)))
            out.append((parts[0] & 0xFFFF) | (parts[1] & 0xFFFF) << 16)
        return out

    cases: dict[str, tuple[Callable[..., int], bool]] = {
        "v_pk_add_u16 v10, v1, v2": (lambda a, b, c: a + b, False),
        "v_pk_sub_i16 v10, v1, v2": (lambda a, b, c: a - b, True),
        "v_pk_mul_lo_u16 v10, v1, v2": (lambda a, b, c: a * b, False),
        "v_pk_mad_u16 v10, v1, v2, v3": (lambda a, b, c: a * b + c, False),
        "v_pk_max_i16 v10, v1, v2": (lambda a, b, c: max(a, b), True),
        "v_pk_min_u16 v10, v1, v2": (lambda a, b, c: min(a, b), False),
        "v_pk_lshlrev_b16 v10, v1, v2": (lambda a, b, c: b << (a & 15), False),
        "v_pk_ashrrev_i16 v10, v1, v2": (lambda a, b, c: b >> (a & 15), True),
        "v_pk_add_u16 v10, v1, v2 clamp": (lambda a, b, c: min(a + b, 65535), False),
        "v_pk_add_i16 v10, v1, v2 clamp": (
            lambda a, b, c: max(min(a + b, 32767), -32768), True,
        ),
    }  # fmt: skip
    for text, (function, sign) in cases.items():
        m.run(text)
        check(m, 10, halves(function, sign=sign), text)
    m.run("v_pk_add_u16 v10, v1, v2 op_sel:[1,0] op_sel_hi:[0,1]")
    want = [
        (a >> 16) + (b & 0xFFFF) & 0xFFFF | ((a & 0xFFFF) + (b >> 16) & 0xFFFF) << 16
        for a, b, _ in TRIPLES
    ]
    check(m, 10, want, "op_sel")


@pytest.mark.parametrize("arch", ARCHS)
def test_dot_products(arch: str) -> None:
    m = machine_for(arch, *columns(TRIPLES), dtype=np.uint32)

    def dot(bits: int, a: int, b: int, sign_a: bool, sign_b: bool) -> int:
        total = 0
        for i in range(32 // bits):
            x, y = (v >> bits * i & ((1 << bits) - 1) for v in (a, b))
            total += (signed(x, bits) if sign_a else x) * (signed(y, bits) if sign_b else y)
        return total

    m.run("v_dot4_u32_u8 v10, v1, v2, v3\n v_dot8_u32_u4 v11, v1, v2, v3")
    check(m, 10, [dot(8, a, b, False, False) + c for a, b, c in TRIPLES], "dot4 u")
    check(m, 11, [dot(4, a, b, False, False) + c for a, b, c in TRIPLES], "dot8 u")
    if arch == "gfx942":
        m.run(
            "v_dot4_i32_i8 v12, v1, v2, v3\n v_dot2_i32_i16 v13, v1, v2, v3\n"
            "v_mov_b32 v14, v3\n v_dot4c_i32_i8 v14, v1, v2"
        )
        check(m, 12, [dot(8, a, b, True, True) + c for a, b, c in TRIPLES], "dot4 i")
        check(m, 13, [dot(16, a, b, True, True) + c for a, b, c in TRIPLES], "dot2 i")
        check(m, 14, [dot(8, a, b, True, True) + c for a, b, c in TRIPLES], "dot4c")
        return
    m.run(
        "v_dot4_i32_iu8 v12, v1, v2, v3 neg_lo:[1,1,0]\n"
        "v_dot4_i32_iu8 v13, v1, v2, v3 neg_lo:[1,0,0]\n"
        "v_dot8_i32_iu4 v14, v1, v2, v3 neg_lo:[0,1,0] clamp"
    )
    check(m, 12, [dot(8, a, b, True, True) + c for a, b, c in TRIPLES], "dot4 ii")
    check(m, 13, [dot(8, a, b, True, False) + c for a, b, c in TRIPLES], "dot4 iu")
    clamped = [
        max(min(dot(4, a, b, False, True) + signed(c), 2**31 - 1), -(2**31)) for a, b, c in TRIPLES
    ]
    check(m, 14, clamped, "dot8 clamp")


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_dual_issue_reads_before_it_writes(arch: str) -> None:
    m = Machine(arch)
    m.v[2], m.v[3] = np.arange(32), np.arange(100, 132)
    m.run("v_dual_mov_b32 v2, v3 :: v_dual_mov_b32 v3, v2")
    np.testing.assert_array_equal(m.v[2], np.arange(100, 132))
    np.testing.assert_array_equal(m.v[3], np.arange(32))
    m.f[4], m.f[5] = 2.0, 3.0
    m.run("v_dual_fmac_f32 v4, v5, v5 :: v_dual_add_f32 v5, v4, v4")
    assert m.f[4][0] == 11.0 and m.f[5][0] == 4.0
