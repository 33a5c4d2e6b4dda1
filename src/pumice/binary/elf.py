"""ELF64 little-endian, as far as compiled GPU programs need it: sections, segments, symbols.

Follows the System V ABI, chapters 4 and 5 ("Object Files", "Program Loading").
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pumice.errors import ArtifactError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_NOTE = struct.Struct("<III")
_SHT_NOBITS = 8
_SHT_NOTE = 7
_SHT_SYMTAB = 2
_SHT_DYNSYM = 11


@dataclass(frozen=True)
class Section:
    """A named part of the file. `address` is where it lies when loaded (0: not loaded)."""

    name: str
    kind: int
    address: int
    offset: int
    size: int
    link: int
    data: bytes


@dataclass(frozen=True)
class Segment:
    """A part of the file as it lies in memory; bytes beyond the file's are zero."""

    kind: int
    address: int
    memory_size: int
    data: bytes


@dataclass(frozen=True)
class Symbol:
    """A name with its address and size in bytes; kind 1 is an object, 2 a function."""

    name: str
    kind: int
    address: int
    size: int


@dataclass(frozen=True)
class Elf:
    """A parsed file. `machine` and `flags` are the header's e_machine and e_flags."""

    machine: int
    os_abi: int
    abi_version: int
    flags: int
    sections: tuple[Section, ...]
    segments: tuple[Segment, ...]
    symbols: dict[str, Symbol]

    def section(self, name: str) -> Section | None:
        """The first section of that name."""
        return next((s for s in self.sections if s.name == name), None)

    def notes(self) -> list[tuple[str, int, bytes]]:
        """(owner, type, description) of every note."""
        found = []
        for section in self.sections:
            if section.kind != _SHT_NOTE:
                continue
            data, at = section.data, 0
            while at + _NOTE.size <= len(data):
                name_size, size, kind = _NOTE.unpack_from(data, at)
                at += _NOTE.size
                owner = data[at : at + name_size].rstrip(b"\0").decode("latin-1")
                at += -(-name_size // 4) * 4
                if at + size > len(data):
                    raise ArtifactError(
                        f"a note of {section.name!r} is truncated: {size} bytes announced, "
                        f"{len(data) - at} there"
                    )
                found.append((owner, kind, data[at : at + size]))
                at += -(-size // 4) * 4
        return found


def _part(data: bytes, offset: int, size: int, what: str) -> bytes:
    if offset + size > len(data):
        raise ArtifactError(
            f"the ELF file is truncated: {what} ends at byte {offset + size}, "
            f"the file has {len(data)}",
            hint="Compile it again or copy it again.",
        )
    return data[offset : offset + size]


def _text(table: bytes, at: int) -> str:
    return table[at : table.find(b"\0", at)].decode("utf-8", "replace")


def read_elf(data: bytes) -> Elf:
    """Parse a file; ArtifactError when it is not a whole ELF64 little-endian file."""
    if data[:4] != b"\x7fELF":
        raise ArtifactError(
            f"not an ELF file: it begins with {data[:4]!r}, not with 0x7f and 'ELF'",
            hint="A compiled code object (.hsaco) is needed.",
        )
    head = _part(data, 0, _HEADER.size, "its header")
    if head[4] != 2 or head[5] != 1:
        raise ArtifactError(
            f"ELF class {head[4]}, byte order {head[5]}; GPU code objects are 64 bit (2), "
            "little endian (1)"
        )
    (ident, _, machine, _, _, phoff, shoff, flags, _, phsize, phnum, shsize, shnum, shstr) = (
        _HEADER.unpack(head)
    )
    segments = []
    for i in range(phnum):
        row = _part(data, phoff + i * phsize, _SEGMENT.size, f"program header {i}")
        kind, _, offset, address, _, file_size, memory_size, _ = _SEGMENT.unpack(row)
        body = _part(data, offset, file_size, f"segment {i}")
        segments.append(Segment(kind, address, memory_size, body))
    rows = [
        _SECTION.unpack(_part(data, shoff + i * shsize, _SECTION.size, f"section header {i}"))
        for i in range(shnum)
    ]
    names = _part(data, rows[shstr][4], rows[shstr][5], "the section names") if rows else b""
    sections = []
    for name, kind, _, address, offset, size, link, _, _, _ in rows:
        title = _text(names, name)
        body = b"" if kind == _SHT_NOBITS else _part(data, offset, size, f"section {title!r}")
        sections.append(Section(title, kind, address, offset, size, link, body))
    return Elf(
        machine, ident[7], ident[8], flags, tuple(sections), tuple(segments), _symbols(sections)
    )


def _symbols(sections: list[Section]) -> dict[str, Symbol]:
    found: dict[str, Symbol] = {}
    for section in sections:
        if section.kind not in (_SHT_SYMTAB, _SHT_DYNSYM) or section.link >= len(sections):
            continue
        table = sections[section.link].data
        for at in range(0, len(section.data) - _SYMBOL.size + 1, _SYMBOL.size):
            name, info, _, _, value, size = _SYMBOL.unpack_from(section.data, at)
            if name:
                title = _text(table, name)
                found.setdefault(title, Symbol(title, info & 15, value, size))
    return found
