"""Dynamic relocations of an AMD code object: words that a loader fills with addresses.

LLVM's AMDGPUUsage, "Relocation Records"; kernels reach a module's variables through such words.
"""

from __future__ import annotations

import struct

from pumice.binary.elf import Elf
from pumice.errors import ArtifactError

_SHT_RELA = 4
_ENTRY = struct.Struct("<QQq")
_SYMBOL = struct.Struct("<IBBHQQ")
_ABS64, _RELATIVE64 = 3, 13
_NONE = 0
_ALLOCATED = ".rela.dyn"


def words(elf: Elf, base: int) -> list[tuple[int, int]]:
    """(offset into the loaded image, 64-bit word) for an image loaded at `base`.

    ArtifactError for a kind that no loader of AMD's knows in a linked code object, and for a symbol
    that is not in the file.
    """
    found = []
    for section in elf.sections:
        if section.kind != _SHT_RELA or section.name != _ALLOCATED:
            continue
        table = elf.sections[section.link].data if section.link < len(elf.sections) else b""
        for at in range(0, len(section.data) - _ENTRY.size + 1, _ENTRY.size):
            offset, info, addend = _ENTRY.unpack_from(section.data, at)
            kind, symbol = info & 0xFFFF_FFFF, info >> 32
            if kind == _NONE:
                continue
            if kind == _RELATIVE64:
                found.append((offset, base + addend))
            elif kind == _ABS64:
                found.append((offset, base + _address(table, symbol) + addend))
            else:
                raise ArtifactError(
                    f"the code object has a relocation of kind {kind} at byte 0x{offset:x}; "
                    f"{_ABS64} (ABS64) and {_RELATIVE64} (RELATIVE64) are known"
                )
    return found


def _address(table: bytes, symbol: int) -> int:
    """Where a symbol of .dynsym lies."""
    if (symbol + 1) * _SYMBOL.size > len(table):
        raise ArtifactError(f"a relocation names symbol {symbol}, which is not in the code object")
    _, _, _, section, value, _ = _SYMBOL.unpack_from(table, symbol * _SYMBOL.size)
    if section == 0:
        raise ArtifactError(
            f"a relocation names symbol {symbol}, which the code object does not define",
            hint="Link it with what defines the symbol.",
        )
    return int(value)
