"""The line table of DWARF 2 to 5: which source line each address of the code came from.

Follows "DWARF Debugging Information Format", version 5, section 6.2 (and 4, where they differ).
"""

from __future__ import annotations

import bisect
import posixpath
from collections.abc import Callable
from dataclasses import dataclass

from pumice.binary.elf import Elf
from pumice.errors import ArtifactError


@dataclass(frozen=True)
class LineTable:
    """Rows sorted by address; a row holds until the next. line 0: no source line."""

    addresses: tuple[int, ...]
    places: tuple[tuple[str, int] | None, ...]  # (file, line); None ends a sequence

    def find(self, address: int) -> tuple[str, int] | None:
        """(file, line) of an address; the last line before it when its own is 0."""
        at = bisect.bisect_right(self.addresses, address) - 1
        while at >= 0:
            place = self.places[at]
            if place is None:
                return None
            if place[1]:
                return place
            at -= 1
        return None


class _Bytes:
    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def number(self, size: int) -> int:
        if self.at + size > len(self.data):
            raise ArtifactError("the debug line table is truncated")
        value = int.from_bytes(self.data[self.at : self.at + size], "little")
        self.at += size
        return value

    def uleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return value

    def sleb(self) -> int:
        value = shift = 0
        while True:
            byte = self.number(1)
            value |= (byte & 127) << shift
            shift += 7
            if not byte & 128:
                return value - (1 << shift) if byte & 64 else value

    def text(self) -> str:
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise ArtifactError("the debug line table is truncated")
        value = self.data[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        return value


def read_lines(elf: Elf) -> LineTable:
    """All line programs of a file; an empty table when it has no debug information."""
    section = elf.section(".debug_line")
    rows: list[tuple[int, tuple[str, int] | None]] = []
    if section is not None:
        strings = {
            name: found.data if (found := elf.section(name)) else b""
            for name in (".debug_line_str", ".debug_str")
        }
        source = _Bytes(section.data)
        while source.at + 4 <= len(section.data):
            _unit(source, strings, rows)
    # A sequence's end and the next one's beginning may share an address: the beginning wins.
    rows.sort(key=lambda row: (row[0], row[1] is not None))
    return LineTable(tuple(r[0] for r in rows), tuple(r[1] for r in rows))


def _unit(
    source: _Bytes, strings: dict[str, bytes], rows: list[tuple[int, tuple[str, int] | None]]
) -> None:
    length = source.number(4)
    wide = length == 0xFFFFFFFF
    if wide:
        length = source.number(8)
    end = source.at + length
    word = 8 if wide else 4
    version = source.number(2)
    if version >= 5:
        source.number(2)  # address size, segment selector size
    program = source.number(word) + source.at
    least = source.number(1)
    if version >= 4:
        source.number(1)  # operations an instruction
    source.number(1)  # default is_stmt
    base = source.number(1)
    base = base - 256 if base > 127 else base
    span = source.number(1)
    first_special = source.number(1)
    lengths = [0] + [source.number(1) for _ in range(first_special - 1)]
    if version >= 5:
        folders = [p for p, _ in _entries(source, strings, word)]
        files = [
            posixpath.join(folders[d], p) if d < len(folders) else p
            for p, d in _entries(source, strings, word)
        ]
    else:
        folders, files = _old_entries(source)
    source.at = program
    _run(source, end, files, rows, least, base, span, first_special, lengths)
    source.at = end


def _old_entries(source: _Bytes) -> tuple[list[str], list[str]]:
    folders = [""]
    while name := source.text():
        folders.append(name)
    files = [""]
    while name := source.text():
        folder = source.uleb()
        source.uleb()
        source.uleb()
        place = folders[folder] if folder < len(folders) else ""
        files.append(posixpath.join(place, name))
    return folders, files


def _entries(source: _Bytes, strings: dict[str, bytes], word: int) -> list[tuple[str, int]]:
    forms = [(source.uleb(), source.uleb()) for _ in range(source.number(1))]
    found = []
    for _ in range(source.uleb()):
        path, folder = "", 0
        for content, form in forms:
            value = _form(source, form, strings, word)
            if content == 1:
                path = str(value)
            elif content == 2 and isinstance(value, int):
                folder = value
        found.append((path, folder))
    return found


def _form(source: _Bytes, form: int, strings: dict[str, bytes], word: int) -> str | int:
    if form == 0x08:
        return source.text()
    if form in (0x0E, 0x1F):
        table = strings[".debug_str" if form == 0x0E else ".debug_line_str"]
        return _Bytes(table, source.number(word)).text()
    sizes = {0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1E: 16}
    if form in sizes:
        return source.number(sizes[form])
    if form == 0x0F:
        return source.uleb()
    raise ArtifactError(f"the debug line table uses form 0x{form:x}, which is not known")


def _run(
    source: _Bytes,
    end: int,
    files: list[str],
    rows: list[tuple[int, tuple[str, int] | None]],
    least: int,
    base: int,
    span: int,
    first_special: int,
    lengths: list[int],
) -> None:
    address, file, line = 0, 1, 1

    def emit() -> None:
        rows.append((address, (files[file] if file < len(files) else "", line)))

    skip: Callable[[], int] = source.uleb
    while source.at < end:
        code = source.number(1)
        if code >= first_special:
            step = code - first_special
            address += step // span * least
            line += base + step % span
            emit()
        elif code == 0:
            size = source.uleb()
            after = source.at + size
            kind = source.number(1)
            if kind == 1:
                rows.append((address, None))
                address, file, line = 0, 1, 1
            elif kind == 2:
                address = source.number(size - 1)
            source.at = after
        elif code == 1:
            emit()
        elif code == 2:
            address += source.uleb() * least
        elif code == 3:
            line += source.sleb()
        elif code == 4:
            file = source.uleb()
        elif code == 8:
            address += (255 - first_special) // span * least
        elif code == 9:
            address += source.number(2)
        else:
            for _ in range(lengths[code]):
                skip()
