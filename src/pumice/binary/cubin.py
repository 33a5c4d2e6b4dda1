"""Cubins: what ptxas says of a compiled CUDA kernel.

Section `.nv.info` holds attributes of kernels, by their symbol: a format byte, an attribute byte,
two bytes of size, and the data. NVIDIA's "CUDA Binary Utilities" prints them (`cuobjdump -elf`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pumice.binary.elf import Elf, read_elf
from pumice.errors import ArtifactError

EM_CUDA = 190
_HAS_SIZE = 4  # EIFMT_SVAL: the size field counts bytes that follow
_REGISTERS, _FRAME = 0x2F, 0x11  # EIATTR_REGCOUNT, EIATTR_FRAME_SIZE
_SASS_BYTES = 16  # of an instruction, since Volta


@dataclass(frozen=True)
class CudaKernel:
    """registers: of a thread. local_bytes: of a thread's stack, where spilled registers lie.
    instructions: of the code as it lies there, padding included.
    """

    name: str
    registers: int
    local_bytes: int
    instructions: int


def read_cubin(data: bytes) -> dict[str, CudaKernel]:
    """Kernels by name. ArtifactError when the file is no cubin."""
    elf = read_elf(data)
    if elf.machine != EM_CUDA:
        raise ArtifactError(f"the ELF file is for machine {elf.machine}; a cubin's is {EM_CUDA}")
    registers, frames = _by_symbol(elf, _REGISTERS), _by_symbol(elf, _FRAME)
    found = {}
    for section in elf.sections:
        name = section.name.removeprefix(".text.")
        if name == section.name or name not in registers:
            continue
        found[name] = CudaKernel(
            name, registers[name], frames.get(name, 0), section.size // _SASS_BYTES
        )
    return found


def _by_symbol(elf: Elf, wanted: int) -> dict[str, int]:
    """An attribute of every kernel."""
    info, names = elf.section(".nv.info"), _symbol_names(elf)
    found: dict[str, int] = {}
    if info is None:
        return found
    at = 0
    while at + 4 <= len(info.data):
        form, attribute, size = struct.unpack_from("<BBH", info.data, at)
        at += 4
        if form != _HAS_SIZE:
            continue  # the two bytes were the value
        if attribute == wanted and size == 8:
            symbol, value = struct.unpack_from("<II", info.data, at)
            if symbol < len(names):
                found[names[symbol]] = value
        at += size
    return found


def _symbol_names(elf: Elf) -> list[str]:
    table = elf.section(".symtab")
    if table is None or table.link >= len(elf.sections):
        return []
    texts = elf.sections[table.link].data
    found = []
    for at in range(0, len(table.data) - 23, 24):
        (begin,) = struct.unpack_from("<I", table.data, at)
        found.append(texts[begin : texts.find(b"\0", begin)].decode("latin-1"))
    return found
