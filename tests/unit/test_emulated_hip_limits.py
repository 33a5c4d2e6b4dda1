"""Launches at the edges of what a card takes, and beyond: the codes of AMD's driver."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
import triton
import triton.language as tl
from emulator_kernels import compiled

from pumice.errors import DeviceError
from pumice.runtime.devices.driver.choose import open_device
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.launch import Arguments, Function, Launch

KINDS = ("pointer", "int64", "pointer", "pointer")

TWO_KERNELS = """
target triple = "amdgcn-amd-amdhsa"
@table = addrspace(1) global [4 x i32] [i32 3, i32 5, i32 7, i32 11]
define amdgpu_kernel void @double(ptr addrspace(1) %p, i32 %n) #0 {
  %id = call i32 @llvm.amdgcn.workitem.id.x()
  %in = icmp slt i32 %id, %n
  br i1 %in, label %work, label %end
work:
  %at = getelementptr i32, ptr addrspace(1) %p, i32 %id
  %old = load i32, ptr addrspace(1) %at
  %new = mul i32 %old, 2
  store i32 %new, ptr addrspace(1) %at
  br label %end
end:
  ret void
}
define amdgpu_kernel void @fill(ptr addrspace(1) %p, i64 %offset, i32 %index) #0 {
  %entry = getelementptr i32, ptr addrspace(1) @table, i32 %index
  %value = load i32, ptr addrspace(1) %entry
  %at = getelementptr i8, ptr addrspace(1) %p, i64 %offset
  store i32 %value, ptr addrspace(1) %at
  ret void
}
declare i32 @llvm.amdgcn.workitem.id.x()
attributes #0 = { "amdgpu-flat-work-group-size"="1,256" }
"""


@functools.cache
def two_kernels(arch: str) -> bytes:
    """A module with two kernels and a variable, by the LLVM inside Triton."""
    from triton._C import libtriton

    libtriton.llvm.init_targets()
    text = libtriton.llvm.translate_to_asm(
        TWO_KERNELS, libtriton.amd.TARGET_TRIPLE, arch, "", [], False, False
    )
    with tempfile.TemporaryDirectory() as folder:
        source, linked = Path(folder, "a.o"), Path(folder, "a.hsaco")
        source.write_bytes(libtriton.amd.assemble_amdgcn(text, arch, ""))
        libtriton.amd.link_hsaco(str(source), str(linked))
        return linked.read_bytes()


@triton.jit
def mark_groups(out, first, BLOCK: tl.constexpr):
    """out[i] = the number of the workgroup that owns element i, beyond `first`."""
    group = tl.program_id(0)
    at = first + group.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.full((BLOCK,), 1, tl.int32) * group)


def marker(device: DriverDevice, block: int = 32) -> Function:
    signature = (("out", "*i32"), ("first", "i64"), ("BLOCK", "constexpr"))
    code = compiled(mark_groups, device.properties.arch, signature, (("BLOCK", block),),
                    (("num_warps", 1),))  # fmt: skip
    return device.load_kernels(code.asm["hsaco"]).function("mark_groups")


def arguments_of(*values: int) -> Arguments:
    arguments = Arguments(KINDS)
    arguments.set_all([*values, *[0] * (len(KINDS) - len(values))])
    return arguments


@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_a_grid_of_thousands(arch: str) -> None:
    device = open_device(f"rocm:emulated-{arch}")
    groups, block, stream = 6007, 32, device.stream()
    buffer = device.allocate(4 * groups * block)
    launch = Launch(marker(device), arguments_of(buffer.address, 0), (groups, 1, 1),
                    (device.properties.wave, 1, 1))  # fmt: skip
    launch.issue(stream)
    got = device.read(buffer.address, (groups, block), np.int32)
    np.testing.assert_array_equal(got, np.repeat(np.arange(groups), block).reshape(groups, block))


def test_offsets_beyond_four_gigabytes() -> None:
    """Addresses are 64 bits: the far end of an allocation of 6 GiB, and one behind it."""
    device = open_device("rocm:emulated-gfx1100")
    size, stream = 6 << 30, device.stream()
    large, behind = device.allocate(size), device.allocate(256)
    first = size // 4 - 64
    Launch(marker(device), arguments_of(large.address, first), (2, 1, 1), (32, 1, 1)).issue(stream)
    got = device.read(large.address + 4 * first, (64,), np.int32)
    np.testing.assert_array_equal(got, np.repeat([0, 1], 32))
    assert behind.address - large.address >= size
    beyond = arguments_of(large.address, first + 32)
    Launch(marker(device), beyond, (2, 1, 1), (32, 1, 1)).issue(stream)
    with pytest.raises(DeviceError, match=r"hipErrorIllegalAddress.*out-of-bounds"):
        stream.synchronize()


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201", "gfx942"])
def test_a_module_of_two_kernels_and_a_variable(arch: str) -> None:
    device = open_device(f"rocm:emulated-{arch}")
    stream, n = device.stream(), 100
    buffer = device.allocate(4 * n)
    device.upload(buffer.address, np.arange(n, dtype=np.int32), stream)
    module = device.load_kernels(two_kernels(arch))
    fill = Arguments(("pointer", "int64", "int32"))
    fill.set_all([buffer.address, 4 * 7, 2])
    double = Arguments(("pointer", "int32"))
    double.set_all([buffer.address, n])
    for _ in range(2):  # they take turns in one stream
        Launch(module.function("fill"), fill, (1, 1, 1), (1, 1, 1)).issue(stream)
        Launch(module.function("double"), double, (1, 1, 1), (128, 1, 1)).issue(stream)
    got = device.read(buffer.address, (n,), np.int32)
    expected = 4 * np.arange(n)
    expected[7] = 14
    np.testing.assert_array_equal(got, expected)
    address, nbytes = module.address_of("table")
    table = device.read(address, (nbytes // 4,), np.int32)
    assert table.tolist() == [3, 5, 7, 11]
    with pytest.raises(DeviceError, match=r"hipErrorNotFound.*double.*fill"):
        module.function("triple")


@pytest.mark.parametrize(
    ("arch", "most"), [("gfx1100", 65536), ("gfx942", 65536), ("gfx950", 163840)]
)
def test_shared_memory_up_to_the_limit(arch: str, most: int) -> None:
    device = open_device(f"rocm:emulated-{arch}")
    stream, threads = device.stream(), (device.properties.wave, 1, 1)
    buffer = device.allocate(4 * 32)
    function, arguments = marker(device), arguments_of(buffer.address, 0)
    Launch(function, arguments, (1, 1, 1), threads, most).issue(stream)
    stream.synchronize()
    with pytest.raises(DeviceError, match=f"hipErrorInvalidValue.*{most + 1:,} bytes of LDS"):
        Launch(function, arguments, (1, 1, 1), threads, most + 1).issue(stream)
    stream.synchronize()  # a refused launch harms nobody


@pytest.mark.parametrize(
    ("grid", "block", "code"),
    [
        ((1 << 31, 1, 1), (1, 1, 1), "hipErrorInvalidValue"),
        ((1, (1 << 16) + 1, 1), (1, 1, 1), "hipErrorInvalidValue"),
        (((1 << 31) - 1, 1, 1), (64, 1, 1), "hipErrorInvalidConfiguration"),
        ((1, 1, 1), (1025, 1, 1), "hipErrorInvalidValue"),
        ((1, 1, 1), (64, 32, 1), "hipErrorInvalidValue"),
        ((1, 1, 1), (512, 1, 1), "hipErrorLaunchFailure"),
    ],
)  # fmt: skip
def test_grids_and_blocks_that_no_card_takes(
    grid: tuple[int, int, int], block: tuple[int, int, int], code: str
) -> None:
    """The codes and their order are those of ROCm's launch."""
    device = open_device("rocm:emulated-gfx1100")
    function = device.load_kernels(two_kernels("gfx1100")).function("double")
    arguments = Arguments(("pointer", "int32"))
    with pytest.raises(DeviceError, match=code):
        Launch(function, arguments, grid, block).issue(device.stream())
    device.synchronize()


def test_arguments_that_do_not_fit() -> None:
    device = open_device("rocm:emulated-gfx1100")
    function = device.load_kernels(two_kernels("gfx1100")).function("fill")
    short = Launch(function, Arguments(("pointer", "int64")), (1, 1, 1), (1, 1, 1))
    with pytest.raises(DeviceError, match=r"hipErrorInvalidValue.*16 bytes.*fill takes 20"):
        short.issue(device.stream())
    plain = Launch(function, Arguments(("pointer", "int64", "int32")), (1, 1, 1), (1, 1, 1))
    call = device.driver.functions["launch"]
    head = (function.handle, 1, 1, 1, 1, 1, 1, 0, None)
    pointers = plain.arguments.pointers()
    extra = plain._extra
    assert call(*head, None, None) == 1  # hipErrorInvalidValue: no arguments
    assert call(*head, pointers, extra) == 1  # both ways
    turned = (ctypes.c_void_p * 5)(2, extra[3], 1, extra[1], 3)
    assert call(*head, None, turned) == 1  # a list in another order
