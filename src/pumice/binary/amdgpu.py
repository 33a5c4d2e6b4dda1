"""AMD code objects (version 3 to 6): their kernels' registers, memory, arguments and entry points.

Follows LLVM's "User Guide for AMDGPU Backend": sections "ELF Code Object", "Code Object Metadata"
and "Kernel Descriptor" (https://llvm.org/docs/AMDGPUUsage.html).

    code = read_code_object(path.read_bytes())
    code.arch, code.kernels["matmul"].vgprs
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pumice.binary.elf import Elf, Segment, read_elf
from pumice.binary.msgpack import unpack
from pumice.errors import ArtifactError

_EM_AMDGPU = 224
_OS_ABI_AMDHSA = 64
_NT_METADATA = 32
_PT_LOAD = 1
_DESCRIPTOR = struct.Struct("<IIIIq20xIIIHH4x")

# e_flags & 0xff → processor (LLVM: "AMDGPU ELF header e_flags").
_MACHINES = {
    0x02C: "gfx900", 0x02F: "gfx906", 0x030: "gfx908", 0x03F: "gfx90a", 0x040: "gfx940",
    0x04B: "gfx941", 0x04C: "gfx942", 0x04F: "gfx950", 0x033: "gfx1010", 0x034: "gfx1011",
    0x035: "gfx1012", 0x036: "gfx1030", 0x037: "gfx1031", 0x038: "gfx1032", 0x039: "gfx1033",
    0x03E: "gfx1034", 0x03D: "gfx1035", 0x045: "gfx1036", 0x041: "gfx1100", 0x046: "gfx1101",
    0x047: "gfx1102", 0x044: "gfx1103", 0x043: "gfx1150", 0x04A: "gfx1151", 0x055: "gfx1152",
    0x058: "gfx1153", 0x048: "gfx1200", 0x04E: "gfx1201", 0x049: "gfx1250",
}  # fmt: skip


@dataclass(frozen=True)
class Argument:
    """One kernel argument: byte offset and size in the kernarg segment.

    kind: "global_buffer", "by_value", "hidden_block_count_x" ... (the metadata's .value_kind).
    """

    offset: int
    size: int
    kind: str
    name: str = ""


@dataclass(frozen=True)
class KernelDescriptor:
    """The 64 bytes that the packet processor reads. Fields as in LLVM's "Kernel Descriptor"."""

    group_segment_fixed_size: int
    private_segment_fixed_size: int
    kernarg_size: int
    kernel_code_entry_byte_offset: int
    compute_pgm_rsrc3: int
    compute_pgm_rsrc1: int
    compute_pgm_rsrc2: int
    kernel_code_properties: int
    kernarg_preload: int

    @property
    def user_sgprs(self) -> int:
        """User SGPRs, preloaded arguments included."""
        return self.compute_pgm_rsrc2 >> 1 & 31

    @property
    def workgroup_id(self) -> tuple[bool, bool, bool]:
        """Which workgroup ids (x, y, z) the kernel asks for in SGPRs."""
        bits = self.compute_pgm_rsrc2 >> 7
        return bool(bits & 1), bool(bits & 2), bool(bits & 4)

    @property
    def workgroup_info(self) -> bool:
        return bool(self.compute_pgm_rsrc2 >> 10 & 1)

    @property
    def workitem_id(self) -> int:
        """0: x only; 1: x and y; 2: x, y and z."""
        return self.compute_pgm_rsrc2 >> 11 & 3

    @property
    def private_segment(self) -> bool:
        return bool(self.compute_pgm_rsrc2 & 1)

    @property
    def wave32(self) -> bool:
        return bool(self.kernel_code_properties >> 10 & 1)

    @property
    def round_mode_32(self) -> int:
        """0 to nearest even, 1 up, 2 down, 3 to zero."""
        return self.compute_pgm_rsrc1 >> 12 & 3

    @property
    def round_mode_16_64(self) -> int:
        return self.compute_pgm_rsrc1 >> 14 & 3

    @property
    def denorm_mode_32(self) -> int:
        """0 flush both, 1 keep outputs, 2 keep inputs, 3 keep both."""
        return self.compute_pgm_rsrc1 >> 16 & 3

    @property
    def denorm_mode_16_64(self) -> int:
        return self.compute_pgm_rsrc1 >> 18 & 3

    @property
    def preload(self) -> tuple[int, int]:
        """(dwords of kernel arguments preloaded into user SGPRs, first dword)."""
        return self.kernarg_preload & 0x7F, self.kernarg_preload >> 7

    @property
    def accum_offset(self) -> int:
        """First accumulation register in the unified file (gfx90a, gfx94x, gfx95x)."""
        return 4 * ((self.compute_pgm_rsrc3 & 63) + 1)

    @property
    def user_sgpr_layout(self) -> tuple[str, ...]:
        """Names of the user SGPRs in order, one name an SGPR; preloaded arguments not included."""
        bits = self.kernel_code_properties
        order = (
            ("private_segment_buffer", 4), ("dispatch_ptr", 2), ("queue_ptr", 2),
            ("kernarg_segment_ptr", 2), ("dispatch_id", 2), ("flat_scratch_init", 2),
            ("private_segment_size", 1),
        )  # fmt: skip
        names: list[str] = []
        for bit, (name, count) in enumerate(order):
            if bits >> bit & 1:
                names += [name] * count
        return tuple(names)


@dataclass(frozen=True)
class Kernel:
    """A kernel's resources, from metadata; sizes in bytes, registers a lane or a wave.

    entry: the byte of `CodeObject.text` at which the kernel begins; address: the same in memory.
    """

    name: str
    symbol: str
    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    wave: int
    max_workgroup: int
    arguments: tuple[Argument, ...]
    entry: int
    address: int
    code_bytes: int
    descriptor: KernelDescriptor


@dataclass(frozen=True)
class CodeObject:
    """A whole file: `arch` ("gfx1100"), kernels by name, code, and what lies in memory."""

    arch: str
    abi: int  # code object version: 3, 4, 5 or 6
    kernels: Mapping[str, Kernel]
    text: bytes
    text_address: int
    segments: tuple[Segment, ...]
    metadata: Mapping[str, Any]
    elf: Elf


def read_code_object(data: bytes) -> CodeObject:
    """Read an AMD code object (`.hsaco`).

    ArtifactError when it is truncated, no ELF file, made for other hardware, or lacks metadata.
    """
    elf = read_elf(data)
    if elf.machine != _EM_AMDGPU or elf.os_abi != _OS_ABI_AMDHSA:
        raise ArtifactError(
            f"ELF machine {elf.machine}, OS ABI {elf.os_abi}: not an AMD GPU's code object "
            f"({_EM_AMDGPU}, {_OS_ABI_AMDHSA})",
            hint="A .hsaco file is needed, not a library or a .cubin.",
        )
    arch = _MACHINES.get(elf.flags & 0xFF)
    if arch is None:
        raise ArtifactError(
            f"processor 0x{elf.flags & 0xFF:03x} in e_flags is unknown; "
            f"known: {', '.join(sorted(_MACHINES.values()))}"
        )
    text = elf.section(".text")
    if text is None:
        raise ArtifactError("the code object has no section .text")
    metadata = _metadata(elf)
    kernels = {}
    for row in metadata.get("amdhsa.kernels", ()):
        kernel = _kernel(row, elf, text.address, len(text.data))
        kernels[kernel.name] = kernel
    load = tuple(s for s in elf.segments if s.kind == _PT_LOAD)
    return CodeObject(
        arch, elf.abi_version + 2, kernels, text.data, text.address, load, metadata, elf
    )


def _metadata(elf: Elf) -> dict[str, Any]:
    for owner, kind, body in elf.notes():
        if owner == "AMDGPU" and kind == _NT_METADATA:
            value = unpack(body)
            if isinstance(value, dict):
                return value
            raise ArtifactError(f"metadata is a {type(value).__name__}, not a map")
    raise ArtifactError(
        "the code object has no metadata note of type 32 (code object version 3 and later)"
    )


def _kernel(row: dict[str, Any], elf: Elf, text_address: int, text_size: int) -> Kernel:
    name, symbol = str(row.get(".name")), str(row.get(".symbol"))
    descriptor_at = elf.symbols.get(symbol)
    if descriptor_at is None:
        raise ArtifactError(f"kernel {name!r}: symbol {symbol!r} of its descriptor is missing")
    descriptor = KernelDescriptor(*_descriptor_fields(elf, descriptor_at.address, name))
    address = descriptor_at.address + descriptor.kernel_code_entry_byte_offset
    entry = address - text_address
    if not 0 <= entry < text_size:
        raise ArtifactError(
            f"kernel {name!r} begins at byte {entry} of .text, which has {text_size}"
        )
    code = elf.symbols.get(name)
    try:
        return Kernel(
            name=name,
            symbol=symbol,
            vgprs=row[".vgpr_count"],
            agprs=row.get(".agpr_count", 0),
            sgprs=row[".sgpr_count"],
            vgpr_spills=row.get(".vgpr_spill_count", 0),
            sgpr_spills=row.get(".sgpr_spill_count", 0),
            lds_bytes=row[".group_segment_fixed_size"],
            scratch_bytes=row[".private_segment_fixed_size"],
            kernarg_bytes=row[".kernarg_segment_size"],
            wave=row[".wavefront_size"],
            max_workgroup=row[".max_flat_workgroup_size"],
            arguments=tuple(
                Argument(a[".offset"], a[".size"], a[".value_kind"], a.get(".name", ""))
                for a in row.get(".args", ())
            ),
            entry=entry,
            address=address,
            code_bytes=code.size if code is not None and code.size else text_size - entry,
            descriptor=descriptor,
        )
    except KeyError as missing:
        raise ArtifactError(f"kernel {name!r}: metadata lacks {missing.args[0]!r}") from None


def _descriptor_fields(elf: Elf, address: int, name: str) -> tuple[int, ...]:
    for section in elf.sections:
        at = address - section.address
        if section.address and 0 <= at and at + 64 <= len(section.data):
            group, private, kernarg, _, entry, rsrc3, rsrc1, rsrc2, properties, preload = (
                _DESCRIPTOR.unpack_from(section.data, at)
            )
            return group, private, kernarg, entry, rsrc3, rsrc1, rsrc2, properties, preload
    raise ArtifactError(f"kernel {name!r}: its descriptor at 0x{address:x} lies in no section")
