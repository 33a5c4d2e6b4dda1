"""Loads, stores and atomics of every address space."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_machine import ARCHS, MEMORY, Machine

from pumice.emulator.memory import BASE, PRIVATE_APERTURE, SHARED_APERTURE, Memory
from pumice.emulator.traffic import count_traffic, shape_of
from pumice.errors import KernelFaultError, OutOfMemoryError, UsageError

DATA = np.random.default_rng(4).integers(0, 256, 4096, np.uint8)


def wide(words: np.ndarray, at: int) -> np.ndarray:
    return np.stack([words[at], words[at + 1]], 1).reshape(-1).view(np.uint64)


def with_data(arch: str, waves: int = 1, lds: int = 1024) -> tuple[Machine, int]:
    """A machine and the address of DATA, which is also in v[2:3] of each lane, 16 bytes apart."""
    m = Machine(arch, waves, lds=lds)
    address = MEMORY.allocate(DATA.size)
    MEMORY.write(address, DATA)
    addresses = address + 64 + 16 * np.arange(m.size, dtype=np.uint64)
    m.v[2], m.v[3] = addresses.astype(np.uint32), (addresses >> np.uint64(32)).astype(np.uint32)
    m.s[:, 4], m.s[:, 5] = address & 0xFFFFFFFF, address >> 32
    return m, address


def bytes_at(offsets: np.ndarray, size: int) -> np.ndarray:
    return DATA[np.asarray(offsets)[:, None] + np.arange(size)]


def number(rows: np.ndarray) -> np.ndarray:
    return (rows.astype(np.uint64) << (8 * np.arange(rows.shape[1], dtype=np.uint64))).sum(1)


LOADS = [("u8", "ubyte"), ("i8", "sbyte"), ("u16", "ushort"), ("i16", "sshort")]
WIDE = [("b32", "dword", 1), ("b64", "dwordx2", 2), ("b96", "dwordx3", 3), ("b128", "dwordx4", 4)]


@pytest.mark.parametrize("arch", ARCHS)
def test_global_loads_of_every_width(arch: str) -> None:
    m, _ = with_data(arch)
    cdna = arch == "gfx942"
    lane = 64 + 16 * np.arange(m.size)
    for rdna, old in LOADS:
        m.run(f"global_load_{old if cdna else rdna} v10, v[2:3], off offset:-6")
        size = int(rdna[1:]) // 8
        want = number(bytes_at(lane - 6, size)).astype(np.int64)
        if rdna[0] == "i":
            want = want << (64 - 8 * size) >> (64 - 8 * size)
        np.testing.assert_array_equal(m.v[10], want.astype(np.uint32), err_msg=rdna)
    for rdna, old, count in WIDE:
        for offset in (8, 5):  # 5: not aligned
            span = "v10" if count == 1 else f"v[10:{9 + count}]"
            m.run(f"global_load_{old if cdna else rdna} {span}, v[2:3], off offset:{offset}")
            for i in range(count):
                want = number(bytes_at(lane + offset + 4 * i, 4)).astype(np.uint32)
                np.testing.assert_array_equal(m.v[10 + i], want)


@pytest.mark.parametrize("arch", ARCHS)
def test_halves_of_registers(arch: str) -> None:
    m, _ = with_data(arch)
    lane = 64 + 16 * np.arange(m.size)
    names = {
        "gfx942": ("short_d16", "short_d16_hi", "ubyte_d16", "sbyte_d16_hi"),
    }.get(arch, ("d16_b16", "d16_hi_b16", "d16_u8", "d16_hi_i8"))
    first, second = number(bytes_at(lane, 2)), number(bytes_at(lane + 2, 2))
    m.v[10], m.v[11] = 0x11112222, 0x11112222
    m.run(
        f"global_load_{names[0]} v10, v[2:3], off\nglobal_load_{names[1]} v11, v[2:3], off offset:2"
    )
    np.testing.assert_array_equal(m.v[10], (first | 0x11110000).astype(np.uint32))
    np.testing.assert_array_equal(m.v[11], (second << 16 | 0x2222).astype(np.uint32))
    m.run(f"global_load_{names[2]} v10, v[2:3], off\n global_load_{names[3]} v11, v[2:3], off")
    byte = number(bytes_at(lane, 1)).astype(np.int64)
    np.testing.assert_array_equal(m.v[10], (byte | 0x11110000).astype(np.uint32))
    high = (byte << 56 >> 56 & 0xFFFF) << 16
    np.testing.assert_array_equal(m.v[11], (high | 0x2222).astype(np.uint32))


@pytest.mark.parametrize("arch", ARCHS)
def test_global_stores_and_scalar_base(arch: str) -> None:
    m, address = with_data(arch)
    cdna = arch == "gfx942"
    lanes = m.size
    out = MEMORY.allocate(32 * lanes)
    MEMORY.write(out, np.full(32 * lanes, 0xEE, np.uint8))
    m.s[:, 6], m.s[:, 7] = out & 0xFFFFFFFF, out >> 32
    m.v[1] = 32 * np.arange(lanes)
    m.v[10:14] = np.arange(4 * lanes, dtype=np.uint32).reshape(4, lanes) * 0x01010101
    name = dict((old, rdna) for rdna, old, _ in WIDE)
    byte, short, hi = ("byte", "short", "short_d16_hi") if cdna else ("b8", "b16", "d16_hi_b16")
    quad = "dwordx4" if cdna else name["dwordx4"]
    active = np.arange(lanes) % 3 != 1
    m.set_exec(active)
    m.run(
        f"global_store_{quad} v1, v[10:13], s[6:7]\n"
        f"global_store_{byte} v1, v10, s[6:7] offset:17\n"
        f"global_store_{short} v1, v11, s[6:7] offset:20\n"
        f"global_store_{hi} v1, v12, s[6:7] offset:24\n"
        f"global_load_{'dword' if cdna else 'b32'} v20, v1, s[4:5] offset:4"
    )
    got = MEMORY.read(out, 32 * lanes).reshape(lanes, 32)
    assert (got[~active] == 0xEE).all()
    words = m.v[10:14][:, active].T.copy()
    np.testing.assert_array_equal(got[active, :16], words.view(np.uint8))
    np.testing.assert_array_equal(got[active, 17], m.v[10][active].astype(np.uint8))
    assert (got[active, 16] == 0xEE).all() and (got[active, 18:20] == 0xEE).all()
    np.testing.assert_array_equal(
        got[active, 20:22].copy().view(np.uint16)[:, 0], m.v[11][active].astype(np.uint16)
    )
    np.testing.assert_array_equal(
        got[active, 24:26].copy().view(np.uint16)[:, 0], (m.v[12][active] >> 16).astype(np.uint16)
    )
    offsets = 32 * np.arange(lanes)[active] + 4
    np.testing.assert_array_equal(m.v[20][active], number(bytes_at(offsets, 4)).astype(np.uint32))
    assert address


@pytest.mark.parametrize("arch", ARCHS)
def test_scalar_loads(arch: str) -> None:
    m, _ = with_data(arch, 3)
    m.s[:, 4] += np.uint32(16) * np.arange(3, dtype=np.uint32)
    m.s[:, 6] = 32
    cdna = arch == "gfx942"
    one, eight = ("dword", "dwordx8") if cdna else ("b32", "b256")
    m.run(
        f"s_load_{one} s10, s[4:5], 0x14\n s_load_{eight} s[16:23], s[4:5], 0x0\n"
        + ("s_load_dword s11, s[4:5], s6" if cdna else f"s_load_{one} s11, s[4:5], s6 offset:0x4")
    )
    for wave in range(3):
        base = 16 * wave
        assert m.s[wave, 10] == number(bytes_at([base + 0x14], 4))[0]
        words = number(bytes_at(base + 4 * np.arange(8), 4))
        np.testing.assert_array_equal(m.s[wave, 16:24], words.astype(np.uint32))
        assert m.s[wave, 11] == number(bytes_at([base + (32 if cdna else 36)], 4))[0]


@pytest.mark.parametrize("arch", ARCHS)
def test_buffers_clip_at_their_size(arch: str) -> None:
    m, address = with_data(arch)
    cdna = arch == "gfx942"
    lanes = m.size
    size = 8 * lanes // 2 + 2  # the last lanes, and one half way, are outside
    m.s[:, 8], m.s[:, 9] = address & 0xFFFFFFFF, address >> 32
    m.s[:, 10], m.s[:, 11] = size, 0x27000
    m.s[:, 12] = 16
    m.v[1], m.v[10] = 8 * np.arange(lanes), 99
    load, soffset = ("dword", "s12") if cdna else ("b32", "s12")
    m.run(f"buffer_load_{load} v10, v1, s[8:11], {soffset} offen offset:4")
    inside = 8 * np.arange(lanes) + 8 <= size
    want = np.zeros(lanes, np.uint32)
    want[inside] = number(bytes_at(8 * np.arange(lanes)[inside] + 20, 4)).astype(np.uint32)
    np.testing.assert_array_equal(m.v[10], want)
    before = MEMORY.read(address, DATA.size)
    m.v[11] = 0x5A5A5A5A
    m.run(f"buffer_store_{load} v11, v1, s[8:11], {'0' if arch != 'gfx1201' else 'null'} offen")
    after = MEMORY.read(address, DATA.size)
    changed = np.flatnonzero(before != after)
    assert changed.max() < size
    inside = np.flatnonzero(8 * np.arange(lanes) + 4 <= size)
    assert (after[:-4].reshape(-1)[(8 * inside)[:, None] + np.arange(4)] == 0x5A).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_lds(arch: str) -> None:
    m = Machine(arch, 2, lds=2048)
    cdna = arch == "gfx942"
    lanes = m.state.lanes
    lane = np.resize(np.arange(lanes), m.size)
    m.v[1], m.v[2], m.v[3] = 8 * lane, lane + 1000, np.arange(m.size)
    store, load = ("write", "read") if cdna else ("store", "load")
    m.run(
        f"ds_{store}_b64 v1, v[2:3] offset:64\n ds_{load}_b32 v10, v1 offset:68\n"
        f"ds_{load}_u16 v11, v1 offset:64\n ds_{load}_i8 v12, v1 offset:64"
    )
    wave = np.arange(m.size) // lanes
    # Both waves write the same places: the second one's numbers stay.
    np.testing.assert_array_equal(m.v[10], lane + lanes)
    np.testing.assert_array_equal(m.v[11], lane + 1000)
    np.testing.assert_array_equal(m.i[12], (lane + 1000).astype(np.int8))
    assert wave.max() == 1
    two = ("2", "2st64") if cdna else ("_2addr", "_2addr_stride64")
    m.v[1] = m.v[18] = 4 * lane
    m.run(
        f"ds_{store}{two[0]}_b32 v1, v2, v3 offset0:4 offset1:100\n"
        f"ds_{load}{two[0]}_b32 v[14:15], v1 offset0:100 offset1:4"
    )
    np.testing.assert_array_equal(m.v[14], lane + lanes)
    np.testing.assert_array_equal(m.v[15], lane + 1000)
    m.run(
        f"ds_{store}{two[1]}_b32 v1, v2, v3 offset0:1 offset1:3\n"
        f"ds_{load}_b32 v16, v1 offset:768\n"
        f"ds_{load}{two[1]}_b32 v[18:19], v18 offset0:1 offset1:3"
    )
    np.testing.assert_array_equal(m.v[16], lane + lanes)
    np.testing.assert_array_equal(m.v[18], lane + 1000)  # the address itself was overwritten
    m.v[1] = 2040 + lane
    with pytest.raises(KernelFaultError, match="LDS"):
        m.run(f"ds_{load}_b32 v16, v1 offset:5")


@pytest.mark.parametrize("arch", ARCHS)
def test_lds_addresses_wrap(arch: str) -> None:
    """Compilers fold an offset into a base that is negative without it."""
    m = Machine(arch)
    m.v[1] = np.arange(m.size, dtype=np.uint32) * 4 - 256
    m.v[2] = np.arange(m.size, dtype=np.uint32)
    store, load = (
        ("ds_write_b32", "ds_read_b32") if m.size == 64 else ("ds_store_b32", "ds_load_b32")
    )
    m.run(f"{store} v1, v2 offset:256")
    m.v[1] += 256
    m.run(f"{load} v3, v1")
    np.testing.assert_array_equal(m.v[3], m.v[2])


@pytest.mark.parametrize(("kind", "words"), [("dword", 1), ("dwordx3", 3), ("dwordx4", 4)])
def test_global_loads_into_lds(kind: str, words: int) -> None:
    m, _ = with_data("gfx950", 2, 4096)
    m.s[:, 124] = [0x80, 0x10 + 64 * 4 * words + 0x80]  # M0: where a wave's part begins
    m.run(f"global_load_lds_{kind} v[2:3], off offset:16")
    begins = np.repeat([0x90, 0xA0 + 64 * 4 * words], 64)
    at = begins + 4 * words * np.tile(np.arange(64), 2)
    got = m.lds.views[1][at[:, None] + np.arange(4 * words)]
    np.testing.assert_array_equal(got, bytes_at(80 + 16 * np.arange(m.size), 4 * words))


@pytest.mark.parametrize("arch", ARCHS)
def test_scratch_belongs_to_a_lane(arch: str) -> None:
    m = Machine(arch, 2, scratch=64)
    cdna = arch == "gfx942"
    word, quad = ("dword", "dwordx4") if cdna else ("b32", "b128")
    m.v[10] = np.arange(m.size)
    m.v[12:16] = m.v[10] + np.arange(4)[:, None].astype(np.uint32) * 1000
    m.v[1] = 4
    m.s[:, 4] = 8
    m.run(
        f"scratch_store_{word} off, v10, off offset:60\n scratch_store_{quad} off, v[12:15], s4\n"
        f"scratch_load_{word} v20, off, off offset:60\n scratch_load_{word} v21, v1, off offset:8"
    )
    np.testing.assert_array_equal(m.v[20], np.arange(m.size))
    np.testing.assert_array_equal(m.v[21], np.arange(m.size) + 1000)
    with pytest.raises(KernelFaultError, match="scratch"):
        m.run(f"scratch_load_{word} v20, off, off offset:61")


@pytest.mark.parametrize("arch", ARCHS)
def test_flat_addresses_choose_their_space(arch: str) -> None:
    m, address = with_data(arch)
    cdna = arch == "gfx942"
    load, store = ("dword", "ds_write_b32") if cdna else ("b32", "ds_store_b32")
    lane = np.arange(m.size)
    m.v[1], m.v[4] = 4 * lane, lane + 7
    word = "dword" if cdna else "b32"
    m.run(f"{store} v1, v4\n scratch_store_{word} off, v1, off offset:16")
    bases = np.array([address, SHARED_APERTURE, PRIVATE_APERTURE], np.uint64)[lane % 3]
    places = bases + np.where(lane % 3 == 2, 16, 4 * lane).astype(np.uint64)
    m.v[2], m.v[3] = places.astype(np.uint32), (places >> np.uint64(32)).astype(np.uint32)
    m.run(f"flat_load_{load} v10, v[2:3]\n s_mov_b64 s[10:11], src_shared_base")
    want = np.where(lane % 3 == 1, lane + 7, 4 * lane)
    memory = number(bytes_at(4 * lane, 4))
    np.testing.assert_array_equal(
        m.v[10], np.where(lane % 3 == 0, memory, want.astype(np.uint64)).astype(np.uint32)
    )
    assert int(m.s[0, 10]) | int(m.s[0, 11]) << 32 == SHARED_APERTURE


@pytest.mark.parametrize("arch", ARCHS)
def test_atomics_take_turns(arch: str) -> None:
    m, _ = with_data(arch, 2)
    cdna = arch == "gfx942"
    cell = MEMORY.allocate(64)
    start = np.array([5, 100, 0xFFFFFFF0, 7, 0, 0, 0x3F800000, 0, 0, 0, 10, 0], np.uint32)
    MEMORY.write(cell, start.view(np.uint8))
    m.s[:, 6], m.s[:, 7] = cell & 0xFFFFFFFF, cell >> 32
    m.v[1], m.v[2], m.v[3] = 0, np.arange(m.size), 0
    m.f[4] = 0.5
    old = "glc" if arch == "gfx1100" else "sc0" if cdna else "th:TH_ATOMIC_RETURN"

    def name(rdna: str, older: str) -> str:
        return older if cdna else rdna

    m.v[6], m.v[7] = 99, 98  # new value, compared value: nobody finds 98 but in cell 10
    m.run(
        f"global_atomic_{name('add_u32', 'add')} v10, v1, v2, s[6:7] {old}\n"
        f"global_atomic_{name('max_u32', 'umax')} v1, v2, s[6:7] offset:4\n"
        f"global_atomic_{name('inc_u32', 'inc')} v11, v1, v2, s[6:7] offset:8 {old}\n"
        f"global_atomic_{name('swap_b32', 'swap')} v12, v1, v2, s[6:7] offset:12 {old}\n"
        f"global_atomic_add_f32 v13, v1, v4, s[6:7] offset:24 {old}\n"
        f"global_atomic_{name('add_u64', 'add_x2')} v[14:15], v1, v[2:3], s[6:7] offset:32 {old}\n"
        f"global_atomic_{name('cmpswap_b32', 'cmpswap')} v16, v1, v[6:7], s[6:7] offset:40 {old}"
    )
    lane = np.arange(m.size)
    sums = 5 + np.concatenate([[0], np.cumsum(lane)[:-1]])
    np.testing.assert_array_equal(m.v[10], sums)
    np.testing.assert_array_equal(m.v[12], np.concatenate([[7], lane[:-1]]))
    np.testing.assert_array_equal(m.f[13], 1 + 0.5 * lane)
    np.testing.assert_array_equal(m.v[14], np.concatenate([[0], np.cumsum(lane)[:-1]]))
    assert set(m.v[16]) == {10}
    end = MEMORY.read(cell, 48).view(np.uint32)
    assert end[0] == 5 + lane.sum() and end[1] == max(100, m.size - 1) and end[3] == m.size - 1
    assert end.view(np.float32)[6] == 1 + 0.5 * m.size
    assert end[8] == lane.sum() and end[10] == 10
    counter = int(start[2])
    for value, seen in zip(lane, m.v[11], strict=True):
        assert seen == counter
        counter = 0 if counter >= value else counter + 1
    assert end[2] == counter
    m.v[7] = 10
    m.run(f"global_atomic_{name('cmpswap_b32', 'cmpswap')} v1, v[6:7], s[6:7] offset:40")
    assert MEMORY.read(cell + 40, 4).view(np.uint32)[0] == 99


@pytest.mark.parametrize("arch", ARCHS)
def test_lds_atomics(arch: str) -> None:
    m = Machine(arch, 1)
    cdna = arch == "gfx942"
    store, load = ("write", "read") if cdna else ("store", "load")
    m.v[1], m.v[2], m.v[3] = 16, np.arange(m.size), 0
    m.f[4] = 1.5
    swap = "ds_cmpst_rtn_b32 v12, v1, v3, v2" if cdna else "ds_cmpstore_rtn_b32 v12, v1, v2, v3"
    m.run(
        f"ds_{store}_b32 v1, v3\n ds_add_rtn_u32 v10, v1, v2\n ds_{load}_b32 v11, v1\n"
        f"ds_{store}_b32 v1, v3\n {swap}\n ds_{load}_b32 v13, v1\n"
        f"ds_{store}_b32 v1, v3\n ds_add_f32 v1, v4\n ds_{load}_b32 v14, v1"
    )
    lane = np.arange(m.size)
    np.testing.assert_array_equal(m.v[10], np.concatenate([[0], np.cumsum(lane)[:-1]]))
    assert set(m.v[11]) == {lane.sum()}
    # Lane 0 swaps 0 for 0, lane 1 puts 1, and then nobody finds the 0 that it looks for.
    assert list(m.v[12][:4]) == [0, 0, 1, 1] and set(m.v[13]) == {1}
    assert set(m.f[14]) == {1.5 * m.size}


@pytest.mark.parametrize("arch", ARCHS)
def test_words_at_odd_addresses(arch: str) -> None:
    m, _ = with_data(arch)
    cdna = arch == "gfx942"
    old, half = ("ushort", "short_d16_hi") if cdna else ("u16", "d16_hi_b16")
    m.v[11] = 5
    m.run(
        f"global_load_{old} v10, v[2:3], off offset:3\nglobal_load_{half} v11, v[2:3], off offset:3"
    )
    want = number(bytes_at(67 + 16 * np.arange(m.size), 2)).astype(np.uint32)
    np.testing.assert_array_equal(m.v[10], want)
    np.testing.assert_array_equal(m.v[11], want << 16 | 5)
    with pytest.raises(KernelFaultError, match="misaligned"):
        name = "add" if cdna else "add_u32"
        m.run(f"global_atomic_{name} v[2:3], v10, off offset:2")


def test_memory_keeps_allocations_apart() -> None:
    memory = Memory(1 << 20)
    a, b = memory.allocate(100), memory.allocate(100)
    assert a % 256 == 0 and a > BASE and b >= a + 256 + 4096
    memory.write(a, b"x" * 100)
    with pytest.raises(KernelFaultError, match="101 bytes"):
        memory.read(a, 101)
    with pytest.raises(KernelFaultError):
        memory.read(a + 128, 1)
    addresses = np.array([a, a + 96, a + 97, b, 0, a - 1], np.int64)
    assert memory.valid(addresses, 4).tolist() == [True, True, False, True, False, False]
    assert memory.valid(addresses[:2], 4) is None
    memory.free(a)
    with pytest.raises(UsageError):
        memory.free(a)
    assert memory.allocate(80) == a
    with pytest.raises(OutOfMemoryError, match="of 1048576"):
        memory.allocate(1 << 20)
    with pytest.raises(UsageError):
        memory.allocate(-1)
    addresses = np.array([a, b, a + 80], np.int64)
    assert memory.valid(addresses, 4).tolist() == [True, True, False]
    memory.free(b)
    assert memory.valid(addresses, 4).tolist() == [True, False, False]
    with pytest.raises(OutOfMemoryError, match="capacity="):
        Memory(1 << 62)


def test_traffic_is_counted_in_segments_and_banks() -> None:
    m = Machine("gfx1100")
    traffic = m.traffic
    lane = np.arange(32)
    space = m.program.memory.memory
    shape = shape_of("b32")
    for stride, small, large in ((4, 2, 1), (64, 32, 16), (0, 1, 1)):
        before = traffic.segments_64, traffic.segments_128
        count_traffic(traffic, m.state, space, stride * lane, lane, shape, False)
        assert (traffic.segments_64 - before[0], traffic.segments_128 - before[1]) == (small, large)
    assert traffic.bytes_read["global"] == 3 * 128 and traffic.global_accesses == 3
    for stride, conflicts in ((4, 0), (8, 1), (128, 31), (0, 0), (132, 0)):
        before = traffic.lds_conflicts
        count_traffic(traffic, m.state, m.lds, stride * lane, lane, shape, True)
        assert traffic.lds_conflicts - before == conflicts, stride
