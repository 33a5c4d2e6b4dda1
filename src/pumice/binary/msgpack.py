"""MessagePack, reading only: the form of an AMD code object's metadata.

Follows https://github.com/msgpack/msgpack/blob/master/spec.md; extension types are refused, for no
code object holds any.
"""

from __future__ import annotations

import struct
from typing import Any

from pumice.errors import ArtifactError

_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
# First byte → (what follows, the format of its length).
_SIZED = {
    0xC4: ("bytes", ">B"), 0xC5: ("bytes", ">H"), 0xC6: ("bytes", ">I"),
    0xD9: ("text", ">B"), 0xDA: ("text", ">H"), 0xDB: ("text", ">I"),
    0xDC: ("array", ">H"), 0xDD: ("array", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip
_MAX_DEPTH = 64


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise ArtifactError(
                f"metadata is truncated: {size} bytes needed at {self.at} of {len(self.data)}"
            )
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, depth: int = 0) -> Any:
        if depth > _MAX_DEPTH:
            raise ArtifactError(f"metadata is nested deeper than {_MAX_DEPTH} levels")
        first = self.take(1)[0]
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 256
        if first < 0x90:
            return self.body("map", first & 15, depth)
        if first < 0xA0:
            return self.body("array", first & 15, depth)
        if first < 0xC0:
            return self.body("text", first & 31, depth)
        if first in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[first]
        if first in _NUMBERS:
            return self.number(_NUMBERS[first])
        if first in _SIZED:
            kind, form = _SIZED[first]
            return self.body(kind, self.number(form), depth)
        raise ArtifactError(f"metadata holds a byte 0x{first:02x} that begins no value")

    def body(self, kind: str, size: int, depth: int) -> Any:
        if kind == "bytes":
            return self.take(size)
        if kind == "text":
            return self.take(size).decode("utf-8", "replace")
        if kind == "array":
            return [self.value(depth + 1) for _ in range(size)]
        pairs = ((self.value(depth + 1), self.value(depth + 1)) for _ in range(size))
        try:
            return dict(pairs)
        except TypeError:
            raise ArtifactError("metadata holds a map with a key that is a map or array") from None


def unpack(data: bytes) -> Any:
    """The one value that `data` holds; ArtifactError when it is damaged or something follows."""
    reader = _Reader(data)
    value = reader.value()
    if data[reader.at :].strip(b"\0"):
        raise ArtifactError(f"{len(data) - reader.at} bytes follow the metadata's value")
    return value
