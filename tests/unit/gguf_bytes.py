"""Writes GGUF files byte by byte, valid ones and ones that are wrong in a chosen place."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

UINT8, UINT16, INT32, UINT32, FLOAT32, BOOL, STRING, ARRAY = 0, 2, 5, 4, 6, 7, 8, 9
F32, Q4_0, Q8_0 = 0, 2, 8


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + u32(kind) + value


def array(kind: int, count: int, body: bytes) -> bytes:
    return u32(kind) + u64(count) + body


@dataclass(frozen=True)
class Tensor:
    """dims are in the file's order, fastest first."""

    name: str
    dims: Sequence[int]
    kind: int
    offset: int
    data: bytes = b""

    def header(self) -> bytes:
        dims = b"".join(u64(n) for n in self.dims)
        return text(self.name) + u32(len(self.dims)) + dims + u32(self.kind) + u64(self.offset)


KEYS = (
    key("general.architecture", STRING, text("llama")),
    key("general.flag", BOOL, b"\x01"),
    key("general.eps", FLOAT32, struct.pack("<f", 0.5)),
    key("tokens", ARRAY, array(STRING, 3, text("a") + text("é") + text(b"\xff"))),
    key("types", ARRAY, array(INT32, 3, struct.pack("<3i", -1, 2, 3))),
    key("flags", ARRAY, array(BOOL, 2, b"\x00\x01")),
)
MATRIX = Tensor("w.weight", (64, 3), Q8_0, 0, bytes(range(204)))
VECTOR = Tensor("n.weight", (5,), F32, 224, struct.pack("<5f", 1, 2, 3, 4, 5))


def gguf(
    keys: Sequence[bytes] = KEYS,
    tensors: Sequence[Tensor] = (MATRIX, VECTOR),
    *,
    magic: bytes = b"GGUF",
    version: bytes = u32(3),
    tensor_count: int | None = None,
    key_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; the counts are the true ones unless given."""
    head = magic + version
    head += u64(len(tensors) if tensor_count is None else tensor_count)
    head += u64(len(keys) if key_count is None else key_count)
    head += b"".join(keys) + b"".join(t.header() for t in tensors)
    body = bytearray()
    for tensor in tensors:
        if tensor.offset > 1 << 20:  # a wrong one: its data is nowhere
            continue
        body.extend(bytes(max(0, tensor.offset - len(body))))
        body[tensor.offset : tensor.offset + len(tensor.data)] = tensor.data
    return head + bytes(-len(head) % alignment) + bytes(body)
