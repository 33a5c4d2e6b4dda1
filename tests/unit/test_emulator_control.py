"""Whole programs: loops, divergence, calls, ids, barriers, workgroups that wait for each other."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from emulator_assembly import kernel
from emulator_machine import ARCHS

from pumice.emulator.emulator import Emulator
from pumice.emulator.report import LaunchReport

COLLATZ = """
  s_load_b64 s[4:5], s[0:1], 0x0
  s_load_b64 s[6:7], s[0:1], 0x8
  v_lshlrev_b32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
  global_load_b32 v2, v1, s[4:5]
  s_waitcnt vmcnt(0)
  v_mov_b32 v3, 0
  s_mov_b32 s10, exec_lo
.Lloop:
  v_cmp_ne_u32 vcc_lo, 1, v2
  s_and_b32 exec_lo, exec_lo, vcc_lo
  s_cbranch_execz .Ldone
  v_and_b32 v4, 1, v2
  v_cmp_eq_u32 vcc_lo, 1, v4
  v_lshrrev_b32 v5, 1, v2
  v_mad_u32_u24 v6, v2, 3, 1
  v_cndmask_b32 v2, v5, v6, vcc_lo
  v_add_nc_u32 v3, 1, v3
  s_branch .Lloop
.Ldone:
  s_mov_b32 exec_lo, s10
  global_store_b32 v1, v3, s[6:7]
"""


def run(
    body: str, arch: str, arrays: list[np.ndarray], grid, block, number: int = 0, **options
) -> LaunchReport:
    gpu = Emulator(arch, capacity=1 << 26)
    gpu.load(kernel(body, arch, **options))
    places = [gpu.upload(a) for a in arrays]
    report = gpu.launch("test", grid, block, [*places, *[0] * (2 - len(places)), number])
    for place, array in zip(places, arrays, strict=True):
        array[...] = gpu.download(place, array.shape, array.dtype)
    return report.check()


def test_waves_that_leave_a_loop_at_different_times() -> None:
    x = np.random.default_rng(5).integers(1, 2000, 256).astype(np.int32)
    steps = np.full(256, -1, np.int32)
    report = run(COLLATZ, "gfx1100", [x, steps], (1,), (256,))

    def length(n: int) -> int:
        count = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            count += 1
        return count

    want = [length(int(n)) for n in x]
    np.testing.assert_array_equal(steps, want)
    # Eight waves, each with as many rounds as its slowest lane, and a last test.
    rounds = np.max(np.reshape(want, (8, 32)), 1) + 1
    assert report.instructions["branch"] == (rounds + rounds - 1).sum()


IDS = """
  s_load_b64 s[4:5], s[0:1], 0x0
  s_waitcnt lgkmcnt(0)
  v_and_b32 v1, 0x3ff, v0
  v_bfe_u32 v2, v0, 10, 10
  v_bfe_u32 v3, v0, 20, 10
  v_mad_u32_u24 v4, v2, 5, v1
  v_mad_u32_u24 v4, v3, 15, v4
  {group}
  s_mul_i32 s11, s10, 30
  v_add_nc_u32 v4, s11, v4
  v_lshlrev_b32 v4, 2, v4
  global_store_b32 v4, v0, s[4:5]
"""
RDNA3_GROUP = "s_mov_b32 s10, s2"
RDNA4_GROUP = """
  s_and_b32 s6, ttmp7, 0xffff
  s_lshr_b32 s7, ttmp7, 16
  s_mul_i32 s7, s7, 4
  s_mul_i32 s6, s6, 2
  s_add_co_i32 s10, ttmp9, s6
  s_add_co_i32 s10, s10, s7
"""


def test_ids_of_threads_in_three_dimensions() -> None:
    out = np.zeros(4 * 30, np.uint32)
    run(IDS.format(group=RDNA3_GROUP), "gfx1100", [out], (4,), (5, 3, 2))
    want = [x | y << 10 | z << 20 for z, y, x in itertools.product(range(2), range(3), range(5))]
    np.testing.assert_array_equal(out, want * 4)


def test_ids_of_workgroups_on_rdna4() -> None:
    body = IDS.replace("s_waitcnt lgkmcnt(0)", "s_wait_kmcnt 0x0").format(group=RDNA4_GROUP)
    body = body.replace("v0, s[4:5]", "v5, s[4:5]").replace(
        "s_mul_i32 s11", "v_mov_b32 v5, s10\n s_mul_i32 s11"
    )
    out = np.full(8 * 30, 99, np.uint32)
    run(body, "gfx1201", [out], (2, 2, 2), (5, 3, 2))
    np.testing.assert_array_equal(out, np.repeat(np.arange(8), 30))


CALL = """
  s_load_b64 s[4:5], s[0:1], 0x0
  s_waitcnt lgkmcnt(0)
  s_getpc_b64 s[6:7]
.Lhere:
  s_add_u32 s6, s6, .Lfunction-.Lhere
  s_addc_u32 s7, s7, 0
  v_mov_b32 v1, v0
  s_swappc_b64 s[8:9], s[6:7]
  s_swappc_b64 s[8:9], s[6:7]
  v_lshlrev_b32 v2, 2, v0
  global_store_b32 v2, v1, s[4:5]
  s_endpgm
.Lfunction:
  v_lshlrev_b32 v1, 1, v1
  v_add_nc_u32 v1, 1, v1
  s_setpc_b64 s[8:9]
"""


def test_calls() -> None:
    out = np.zeros(64, np.uint32)
    run(CALL, "gfx1100", [out], (1,), (64,))
    np.testing.assert_array_equal(out, 4 * np.arange(64) + 3)


HANDOVER = """
  s_load_b64 s[4:5], s[0:1], 0x0
  v_mov_b32 v1, 0
  v_mov_b32 v2, 1
  s_waitcnt lgkmcnt(0)
  s_cmp_eq_u32 s2, 0
  s_cbranch_scc0 .Lwrite
.Lwait:
  global_load_b32 v3, v1, s[4:5] glc
  s_waitcnt vmcnt(0)
  v_readfirstlane_b32 s6, v3
  s_cmp_eq_u32 s6, 1
  s_cbranch_scc0 .Lwait
  v_mov_b32 v4, 42
  global_store_b32 v1, v4, s[4:5] offset:4
  s_branch .Lout
.Lwrite:
  global_store_b32 v1, v2, s[4:5]
.Lout:
"""


def test_a_workgroup_that_waits_for_another() -> None:
    """The waiting wave is at the lower address: it must not starve the one it waits for."""
    out = np.zeros(2, np.uint32)
    run(HANDOVER, "gfx1100", [out], (2,), (32,))
    assert out.tolist() == [1, 42]


EXCHANGE = {
    "gfx1100": """
  s_load_b64 s[4:5], s[0:1], 0x0
  v_lshlrev_b32 v1, 2, v0
  v_xor_b32 v2, 0x1fc, v1
  ds_store_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_load_b32 v3, v2
  s_waitcnt lgkmcnt(0)
  s_lshl_b32 s6, s2, 9
  v_add_nc_u32 v1, s6, v1
  global_store_b32 v1, v3, s[4:5]
""",
    "gfx1201": """
  s_load_b64 s[4:5], s[0:1], 0x0
  v_lshlrev_b32 v1, 2, v0
  v_xor_b32 v2, 0x1fc, v1
  ds_store_b32 v1, v0
  s_wait_dscnt 0x0
  s_barrier_signal -1
  s_barrier_wait -1
  ds_load_b32 v3, v2
  s_wait_dscnt 0x0
  s_wait_kmcnt 0x0
  s_lshl_b32 s6, ttmp9, 9
  v_add_nc_u32 v1, s6, v1
  global_store_b32 v1, v3, s[4:5]
""",
    "gfx942": """
  s_load_dwordx2 s[4:5], s[0:1], 0x0
  v_lshlrev_b32 v1, 2, v0
  v_xor_b32 v2, 0x1fc, v1
  ds_write_b32 v1, v0
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b32 v3, v2
  s_waitcnt lgkmcnt(0)
  s_lshl_b32 s6, s2, 9
  v_add_u32 v1, s6, v1
  global_store_dword v1, v3, s[4:5]
""",
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("groups", [1, 7, 300])
def test_barriers_of_many_workgroups(arch: str, groups: int) -> None:
    """More workgroups than one batch holds, and a last batch that is not full."""
    out = np.full(128 * groups, -1, np.int32)
    report = run(EXCHANGE[arch], arch, [out], (groups,), (128,), lds=512)
    np.testing.assert_array_equal(out, np.tile(127 - np.arange(128), groups))
    waves = groups * (2 if arch == "gfx942" else 4)
    assert report.waves == waves
    assert report.instructions["barrier"] == waves * (2 if arch == "gfx1201" else 1)
    assert report.bytes_written == 512 * groups
    assert report.traffic.segments_64 == report.traffic.segments_128 * 2 == 8 * groups


def test_a_workgroup_of_odd_size() -> None:
    out = np.full(45, 7, np.uint32)
    body = (
        "s_load_b64 s[4:5], s[0:1], 0x0\n v_lshlrev_b32 v1, 2, v0\n s_waitcnt lgkmcnt(0)\n"
        "global_store_b32 v1, v0, s[4:5]\n"
    )
    run(body, "gfx1100", [out], (1,), (45,))  # three lanes of the second wave would fault
    np.testing.assert_array_equal(out, np.arange(45))


def test_launches_do_not_see_each_others_lds() -> None:
    gpu = Emulator("gfx1100", capacity=1 << 24)
    body = "v_lshlrev_b32 v1, 2, v0\n ds_load_b32 v2, v1\n s_waitcnt lgkmcnt(0)\n"
    gpu.load(kernel(body, "gfx1100", lds=128))
    for _ in range(2):
        report = gpu.launch("test", (1,), (32,), [0, 0, 0])
        assert [fault.kind for fault in report.faults] == ["uninitialized-lds"]


def test_a_launch_of_fewer_workgroups_reuses_what_is_bound() -> None:
    gpu = Emulator("gfx1100", capacity=1 << 24)
    gpu.load(kernel(EXCHANGE["gfx1100"], "gfx1100", lds=512))
    out = gpu.allocate(4 * 128 * 8)
    for groups, batches in ((6, 1), (8, 2), (5, 2), (2, 3), (3, 3), (1, 3)):
        gpu.write(out, np.full(128 * 8, 99, np.int32))
        report = gpu.launch("test", (groups,), (128,), [out, 0, 0]).check()
        got = gpu.download(out, (8, 128), np.int32)
        assert (got[:groups] == 127 - np.arange(128)).all() and (got[groups:] == 99).all()
        assert report.waves == 4 * groups and report.instructions["barrier"] == 4 * groups
        assert len(gpu._batches) == batches
    gpu.unload(gpu.modules[0])
    assert gpu._batches == {}
