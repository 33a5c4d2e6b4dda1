"""AMD code objects: what Triton compiled is what the reader says, and damage is named."""

from __future__ import annotations

import re

import emulator_kernels as kernels
import pytest

from pumice.binary.amdgpu import read_code_object
from pumice.binary.msgpack import unpack
from pumice.errors import ArtifactError

SIGNATURE = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}
ARCHS = ("gfx1100", "gfx942", "gfx1201", "gfx90a", "gfx950", "gfx1151")


def _compiled(arch: str):
    return kernels.compiled(kernels.vector_add, arch, tuple(SIGNATURE.items()), (("BLOCK", 256),))


@pytest.fixture(scope="module")
def hsaco() -> bytes:
    return _compiled("gfx1100").asm["hsaco"]


@pytest.mark.parametrize("arch", ARCHS)
def test_resources_are_those_of_the_assembly(arch: str) -> None:
    done = _compiled(arch)
    assembly = done.asm["amdgcn"]

    def said(pattern: str) -> int:
        found = re.search(pattern + r"\s+(\d+)", assembly)
        assert found, pattern
        return int(found.group(1))

    code = read_code_object(done.asm["hsaco"])
    assert code.arch == arch
    assert code.abi == said(r"\.amdhsa_code_object_version")
    kernel = code.kernels["vector_add"]
    assert kernel.vgprs == said(r"\.vgpr_count:")
    assert kernel.sgprs == said(r"\.sgpr_count:")
    assert kernel.vgpr_spills == said(r"\.vgpr_spill_count:")
    assert kernel.sgpr_spills == said(r"\.sgpr_spill_count:")
    assert kernel.lds_bytes == said(r"\.group_segment_fixed_size:")
    assert kernel.scratch_bytes == said(r"\.private_segment_fixed_size:")
    assert kernel.kernarg_bytes == said(r"\.kernarg_segment_size:")
    assert kernel.max_workgroup == said(r"\.max_flat_workgroup_size:")
    assert kernel.wave == said(r"\.wavefront_size:")
    assert kernel.code_bytes == said(r"codeLenInByte =")
    # Four arguments of ours and two trailing pointers that Triton adds.
    assert [(a.offset, a.size) for a in kernel.arguments[:4]] == [(0, 8), (8, 8), (16, 8), (24, 4)]
    assert [a.kind for a in kernel.arguments[:4]] == ["global_buffer"] * 3 + ["by_value"]
    descriptor = kernel.descriptor
    assert descriptor.user_sgprs == said(r"\.amdhsa_user_sgpr_count")
    # Before RDNA4 an id that is not asked for is absent; there the ids always lie in TTMPs.
    if not arch.startswith("gfx12"):
        assert descriptor.workgroup_id == (True, False, False)
    assert descriptor.workitem_id == said(r"\.amdhsa_system_vgpr_workitem_id")
    assert descriptor.wave32 == (kernel.wave == 32)
    assert descriptor.denorm_mode_32 == said(r"\.amdhsa_float_denorm_mode_32")
    assert descriptor.round_mode_32 == said(r"\.amdhsa_float_round_mode_32")
    if "accum_offset" in assembly:
        assert descriptor.accum_offset == said(r"\.amdhsa_accum_offset")
    if "kernarg_preload_length" in assembly:
        assert descriptor.preload[0] == said(r"\.amdhsa_user_sgpr_kernarg_preload_length")
    assert "kernarg_segment_ptr" in descriptor.user_sgpr_layout


def test_every_truncation_is_an_error(hsaco: bytes) -> None:
    for size in [*range(0, 64, 7), *range(64, len(hsaco), 211)]:
        with pytest.raises(ArtifactError):
            read_code_object(hsaco[:size])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: b"MZ"}, "not an ELF file"),
        ({4: b"\1"}, "ELF class 1"),
        ({18: b"\x3e\0"}, "ELF machine 62"),
        ({48: b"\xee"}, "processor 0x0ee"),
    ],
)
def test_another_kind_of_file_is_named(hsaco: bytes, change: dict, message: str) -> None:
    data = bytearray(hsaco)
    for at, value in change.items():
        data[at : at + len(value)] = value
    with pytest.raises(ArtifactError, match=message):
        read_code_object(bytes(data))


def test_an_empty_file_is_named() -> None:
    with pytest.raises(ArtifactError, match="not an ELF"):
        read_code_object(b"")


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\xc0", None), (b"\xc3", True), (b"\x7f", 127), (b"\xff", -1), (b"\xcd\1\2", 258),
        (b"\xd1\xff\xfe", -2), (b"\xcb" + b"\x3f\xf0" + bytes(6), 1.0), (b"\xa2hi", "hi"),
        (b"\xd9\x01x", "x"), (b"\x92\1\x91\2", [1, [2]]), (b"\x81\xa1a\xc2", {"a": False}),
        (b"\xdc\0\1\5", [5]), (b"\xde\0\1\1\2", {1: 2}), (b"\xc4\2ab", b"ab"),
    ],
)  # fmt: skip
def test_metadata_values(data: bytes, value: object) -> None:
    assert unpack(data) == value


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xa5hi", b"\x01\x02", b"\x91" * 99, b"\x81\x90\1"]
)
def test_damaged_metadata(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        unpack(data)
