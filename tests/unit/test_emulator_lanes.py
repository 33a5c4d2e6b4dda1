"""Instructions that move values between lanes, with all lanes and with some of them idle."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_machine import ARCHS, Machine

RDNA = ("gfx1100", "gfx1201")


def fresh(arch: str, waves: int = 2) -> Machine:
    """v1 = 1000·wave + lane, v10 = 7."""
    m = Machine(arch, waves)
    lanes = m.state.lanes
    m.v[1] = np.concatenate([1000 * w + np.arange(lanes) for w in range(waves)])
    m.v[10] = 7
    return m


def by_lane(m: Machine, function) -> np.ndarray:
    """What v10 should be: function(lane) names the lane that is read, or is None for the old 7,
    or "0".
    """
    lanes = m.state.lanes
    out = []
    for wave in range(m.state.waves):
        for lane in range(lanes):
            source = function(lane)
            out.append(7 if source is None else 0 if source == "0" else 1000 * wave + source)
    return np.array(out, np.uint32)


def reverse8(lane: int) -> int:
    return lane // 8 * 8 + 7 - lane % 8


ROW = {
    "quad_perm:[1,0,3,2]": lambda n: n ^ 1,
    "quad_perm:[3,3,0,1]": lambda n: n // 4 * 4 + (3, 3, 0, 1)[n % 4],
    "row_shl:3": lambda n: n + 3 if n % 16 + 3 < 16 else None,
    "row_shr:1": lambda n: n - 1 if n % 16 else None,
    "row_ror:5": lambda n: n // 16 * 16 + (n - 5) % 16,
    "row_mirror": lambda n: n // 16 * 16 + 15 - n % 16,
    "row_half_mirror": reverse8,
}
ONLY_RDNA = {
    "row_share:4": lambda n: n // 16 * 16 + 4,
    "row_xmask:6": lambda n: n ^ 6,
}
ONLY_CDNA = {
    "wave_shr:1": lambda n: n - 1 if n else None,
    "wave_rol:1": lambda n: (n + 1) % 64,
    "row_bcast:15": lambda n: n // 16 * 16 - 1 if n >= 16 else None,
    "row_bcast:31": lambda n: 31 if n >= 32 else None,
    "row_newbcast:4": lambda n: n // 16 * 16 + 4,
}


@pytest.mark.parametrize("arch", ARCHS)
def test_dpp_patterns(arch: str) -> None:
    patterns = {**ROW, **(ONLY_CDNA if arch == "gfx942" else ONLY_RDNA)}
    for text, source in patterns.items():
        m = fresh(arch)
        m.run(f"v_mov_b32_dpp v10, v1 {text} row_mask:0xf bank_mask:0xf")
        np.testing.assert_array_equal(m.v[10], by_lane(m, source), err_msg=text)
        m = fresh(arch)
        m.run(f"v_mov_b32_dpp v10, v1 {text} row_mask:0xf bank_mask:0xf bound_ctrl:1")
        zero = by_lane(m, lambda n, s=source: "0" if s(n) is None else s(n))
        np.testing.assert_array_equal(m.v[10], zero, err_msg=text)


@pytest.mark.parametrize("arch", ARCHS)
def test_dpp_masks_and_idle_lanes(arch: str) -> None:
    m = fresh(arch)
    m.run("v_mov_b32_dpp v10, v1 quad_perm:[1,0,3,2] row_mask:0x1 bank_mask:0x5")
    wanted = by_lane(m, lambda n: n ^ 1 if n < 16 and n // 4 in (0, 2) else None)
    np.testing.assert_array_equal(m.v[10], wanted)
    for bound, missing in (("", None), (" bound_ctrl:1", "0")):
        m = fresh(arch)
        active = np.arange(m.size) % 4 != 1
        m.set_exec(active)
        m.run(f"v_mov_b32_dpp v10, v1 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf{bound}")

        def source(n: int, missing=missing):
            if n % 4 == 1:
                return None  # idle: keeps what it has
            return missing if n % 4 == 0 else n ^ 1

        np.testing.assert_array_equal(m.v[10], by_lane(m, source))


@pytest.mark.parametrize("arch", ARCHS)
def test_dpp_in_arithmetic(arch: str) -> None:
    m = fresh(arch, 1)
    m.v[2] = 5
    name = "v_add_u32_dpp" if arch == "gfx942" else "v_add_nc_u32_dpp"
    m.run(f"{name} v10, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf bound_ctrl:1")
    lane = np.arange(m.size)
    np.testing.assert_array_equal(m.v[10], np.where(lane % 16, lane - 1, 0) + 5)


@pytest.mark.parametrize("arch", RDNA)
def test_dpp_in_compares_and_three_operands(arch: str) -> None:
    m = fresh(arch, 1)
    lane = np.arange(32)
    m.v[2] = 5
    m.run("v_cmp_gt_u32_e64_dpp s4, v1, v2 row_shr:1 row_mask:0xf bank_mask:0xf")
    np.testing.assert_array_equal(m.mask(4), (lane % 16 > 0) & (lane - 1 > 5))
    m.f[1], m.f[2], m.f[3] = lane, 2.0, 0.5
    m.run("v_fma_f32_e64_dpp v10, -v1, v2, v3 quad_perm:[0,0,0,0] row_mask:0xf bank_mask:0xf")
    np.testing.assert_array_equal(m.f[10], -2.0 * (lane // 4 * 4) + 0.5)


@pytest.mark.parametrize("arch", RDNA)
def test_dpp8_and_permlanes(arch: str) -> None:
    m = fresh(arch)
    m.run("v_mov_b32_dpp v10, v1 dpp8:[7,6,5,4,3,2,1,0]")
    np.testing.assert_array_equal(m.v[10], by_lane(m, reverse8))
    m = fresh(arch)
    m.s[:, 4], m.s[:, 5] = 0x01234567, 0x89ABCDEF
    m.run("v_permlane16_b32 v10, v1, s4, s5\n v_permlanex16_b32 v11, v1, s4, s5")
    picks = [0x01234567 >> 4 * i & 15 for i in range(8)] + [
        0x89ABCDEF >> 4 * i & 15 for i in range(8)
    ]
    np.testing.assert_array_equal(m.v[10], by_lane(m, lambda n: n // 16 * 16 + picks[n % 16]))
    wanted = by_lane(m, lambda n: (n // 16 ^ 1) * 16 + picks[n % 16])
    np.testing.assert_array_equal(m.v[11], wanted)


@pytest.mark.parametrize("arch", ARCHS)
def test_read_and_write_of_a_lane(arch: str) -> None:
    m = fresh(arch)
    lanes = m.state.lanes
    m.s[:, 6] = [3, 9]
    m.run(
        "v_readlane_b32 s8, v1, 5\n v_readlane_b32 s9, v1, s6\n v_writelane_b32 v10, s9, 2\n"
        "v_readfirstlane_b32 s10, v1"
    )
    assert list(m.s[:, 8]) == [5, 1005] and list(m.s[:, 9]) == [3, 1009]
    assert list(m.s[:, 10]) == [0, 1000]
    assert list(m.v[10][[2, lanes + 2]]) == [3, 1009] and m.v[10][3] == 7
    active = np.ones(m.size, bool)
    active[:4] = active[lanes : lanes + 11] = False
    m.set_exec(active)
    m.run("v_readfirstlane_b32 s10, v1\n v_readlane_b32 s8, v1, 1")
    assert list(m.s[:, 10]) == [4, 1011]
    assert list(m.s[:, 8]) == [1, 1001]  # whatever EXEC says


@pytest.mark.parametrize("arch", ARCHS)
def test_counts_of_lower_lanes(arch: str) -> None:
    m = fresh(arch)
    lanes = m.state.lanes
    m.run("v_mbcnt_lo_u32_b32 v10, -1, 0\n v_mbcnt_hi_u32_b32 v11, -1, v10")
    np.testing.assert_array_equal(m.v[10][:lanes], np.minimum(np.arange(lanes), 32))
    if lanes == 64:
        np.testing.assert_array_equal(m.v[11][:lanes], np.arange(lanes))
    m.s[:, 4] = 0b1011
    m.run("v_mbcnt_lo_u32_b32 v12, s4, 50")
    np.testing.assert_array_equal(m.v[12][:6], [50, 51, 52, 52, 53, 53])


@pytest.mark.parametrize("arch", ARCHS)
def test_permutes_through_the_lds_unit(arch: str) -> None:
    m = fresh(arch)
    lanes = m.state.lanes
    m.v[2] = np.resize(4 * ((np.arange(lanes) * 7 + 3) % lanes), m.size)
    m.run("ds_bpermute_b32 v10, v2, v1\n ds_permute_b32 v11, v2, v1")
    np.testing.assert_array_equal(m.v[10], by_lane(m, lambda n: (7 * n + 3) % lanes))
    back = {(7 * n + 3) % lanes: n for n in range(lanes)}
    np.testing.assert_array_equal(m.v[11], by_lane(m, lambda n: back[n]))
    active = np.arange(m.size) % 2 == 0
    m = fresh(arch)
    m.v[2] = np.resize(4 * (np.arange(lanes) ^ 3), m.size)
    m.set_exec(active)
    m.run("ds_bpermute_b32 v10, v2, v1")  # every even lane reads an idle odd one
    np.testing.assert_array_equal(m.v[10], by_lane(m, lambda n: None if n % 2 else "0"))


@pytest.mark.parametrize("arch", ARCHS)
def test_swizzles(arch: str) -> None:
    for pattern, source in {
        "swizzle(QUAD_PERM, 1, 2, 3, 0)": lambda n: n // 4 * 4 + (n + 1) % 4,
        "swizzle(BROADCAST, 8, 3)": lambda n: n // 8 * 8 + 3,
        "swizzle(SWAP, 16)": lambda n: n ^ 16,
        "swizzle(REVERSE, 4)": lambda n: n ^ 3,
        'swizzle(BITMASK_PERM, "01pi0")': lambda n: n // 32 * 32 | 8 | n & 4 | ~n & 2,
    }.items():
        m = fresh(arch)
        m.run(f"ds_swizzle_b32 v10, v1 offset:{pattern}")
        np.testing.assert_array_equal(m.v[10], by_lane(m, source), err_msg=pattern)


def test_sdwa_on_cdna() -> None:
    m = fresh("gfx942", 1)
    m.v[2], m.v[3] = 0x80FF1234, 0x00020003
    m.run(
        "v_add_u32_sdwa v10, v2, v3 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1 "
        "src1_sel:WORD_0\n"
        "v_mov_b32 v11, -1\n"
        "v_add_u32_sdwa v11, sext(v2), v3 dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE "
        "src0_sel:BYTE_3 src1_sel:BYTE_0\n"
        "v_cvt_f32_u32_sdwa v12, v2 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_2"
    )
    assert m.v[10][0] == 0x80FF + 3
    assert m.v[11][0] == 0xFFFF83FF
    assert m.f[12][0] == 255.0


def test_rows_change_places_on_gfx950() -> None:
    m = fresh("gfx950", 1)
    m.v[10] = 500 + np.arange(64)
    m.run("v_permlane32_swap_b32 v10, v1")
    lane = np.arange(64)
    np.testing.assert_array_equal(m.v[10], np.where(lane < 32, 500 + lane, lane - 32))
    np.testing.assert_array_equal(m.v[1], np.where(lane < 32, 532 + lane, lane))


@pytest.mark.parametrize("arch", ARCHS)
def test_swap_and_accumulation_registers(arch: str) -> None:
    m = fresh(arch, 1)
    if arch == "gfx942":
        m.run("v_accvgpr_write_b32 a5, v1\n v_mov_b32 v1, 0\n v_accvgpr_read_b32 v10, a5")
    else:
        m.run("v_swap_b32 v10, v1")
        assert set(m.v[1]) == {7}
    np.testing.assert_array_equal(m.v[10], np.arange(m.size))
