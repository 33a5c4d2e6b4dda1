"""A GGUF header, read with every bound checked: a damaged file becomes a ModelFileError.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian:
    "GGUF"  version u32  tensor count u64  key count u64
    keys:     name string, type u32, value
    tensors:  name string, dimensions u32, u64 each (fastest first), type u32, offset u64
    padding up to `general.alignment`, then the tensors' data
A string is a u64 length and UTF-8 bytes; an array an element type u32, a u64 count, the elements.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumice.errors import ModelFileError, UnsupportedError
from pumice.quantization import QuantFormat, by_gguf_type
from pumice.quantization.gguf_families import GGUF_BLOCKS
from pumice.weights.magic import describe_content

MAGIC = b"GGUF"
_BOOL, _STRING, _ARRAY = 7, 8, 9
#: value type → (name, struct letter)
_SCALARS = {
    0: ("uint8", "B"), 1: ("int8", "b"), 2: ("uint16", "H"), 3: ("int16", "h"), 4: ("uint32", "I"),
    5: ("int32", "i"), 6: ("float32", "f"), _BOOL: ("bool", "B"), 10: ("uint64", "Q"),
    11: ("int64", "q"), 12: ("float64", "d"),
}  # fmt: skip
_KEY_MIN = 8 + 4 + 1  # an empty name, a type, a one-byte value
_TENSOR_MIN = 8 + 4 + 8 + 4 + 8  # an empty name, one dimension, type, offset
_MAX_DIMS = 4
_U64 = struct.Struct("<Q")
_SHOWN = 80


@dataclass(frozen=True)
class TensorInfo:
    """One tensor. shape is row-major: (N, K) for a matrix that maps K inputs to N outputs.

    offset and nbytes are in the file numbered `shard`; offset counts from that file's start.
    """

    name: str
    shape: tuple[int, ...]
    format: QuantFormat
    offset: int
    nbytes: int
    row_bytes: int
    shard: int = 0

    @property
    def type(self) -> str:
        """GGML's name of the element type."""
        return self.format.name.upper()


@dataclass(frozen=True)
class Header:
    """What a file says before its data."""

    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    alignment: int
    data_start: int


def block_of(fmt: QuantFormat) -> tuple[int, int]:
    """(weights in a block, bytes of a block) of a format that a GGUF file can hold."""
    if fmt.affine:
        _, nbytes, weights, _ = GGUF_BLOCKS[fmt.name]
        return weights, nbytes
    return 1, fmt.bits // 8


class _Cursor:
    """Reads forward through the mapped file and never past its end."""

    def __init__(self, data: mmap.mmap | bytes, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0
        self.end = len(data)

    def fail(self, problem: str, hint: str | None = None) -> ModelFileError:
        return ModelFileError(f"{self.path}: {problem}", hint=hint)

    def need(self, nbytes: int, what: str) -> None:
        if nbytes > self.end - self.at:
            raise self.fail(
                f"the file is cut off inside its header: {what} needs {nbytes:,} bytes at byte "
                f"{self.at:,}, and the file ends at {self.end:,}",
                hint="Download the file again.",
            )

    def number(self, letter: str, what: str) -> Any:
        size = struct.calcsize("<" + letter)
        self.need(size, what)
        (value,) = struct.unpack_from("<" + letter, self.data, self.at)
        self.at += size
        return value

    def text(self, what: str) -> str:
        length = self.number("Q", f"the length of {what}")
        self.need(length, what)
        raw = self.data[self.at : self.at + length]
        self.at += length
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is no UTF-8 text: {error}") from None

    def value(self, key: str) -> Any:
        kind = self.number("I", f"the type of key {key!r}")
        if kind == _STRING:
            return self.text(f"the value of key {key!r}")
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            raise self.fail(f"key {key!r} has type {kind}; allowed: 0 to 12")
        value = self.number(_SCALARS[kind][1], f"the value of key {key!r}")
        if kind != _BOOL:
            return value
        if value > 1:
            raise self.fail(f"key {key!r} is a bool of value {value}; allowed: 0 and 1")
        return bool(value)

    def array(self, key: str) -> list[Any]:
        kind = self.number("I", f"the element type of array {key!r}")
        count = self.number("Q", f"the length of array {key!r}")
        if kind == _ARRAY:
            raise self.fail(f"key {key!r} is an array of arrays, which GGUF does not use")
        if kind == _STRING:
            return self.strings(key, count)
        if kind not in _SCALARS:
            raise self.fail(f"key {key!r} is an array of type {kind}; allowed: 0 to 8 and 10 to 12")
        letter = _SCALARS[kind][1]
        nbytes = count * struct.calcsize("<" + letter)
        self.need(nbytes, f"array {key!r} of {count:,} elements")
        values = list(struct.unpack_from(f"<{count}{letter}", self.data, self.at))
        self.at += nbytes
        if kind != _BOOL:
            return values
        if any(v > 1 for v in values):
            raise self.fail(f"array {key!r} holds a bool that is neither 0 nor 1")
        return [bool(v) for v in values]

    def strings(self, key: str, count: int) -> list[str | bytes]:
        """An array of strings; an element that is no UTF-8 stays bytes (a piece of a character)."""
        self.need(count * 8, f"array {key!r} of {count:,} strings")
        data, at, end, unpack = self.data, self.at, self.end, _U64.unpack_from
        raw: list[bytes] = []
        append = raw.append
        try:  # one loop without calls: a vocabulary has some 10^5 of these
            for _ in range(count):
                start = at + 8
                at = start + unpack(data, at)[0]
                if at > end:
                    raise struct.error
                append(data[start:at])
        except struct.error:
            raise self.fail(
                f"string {len(raw):,} of array {key!r} goes past the end of the file at {end:,}",
                hint="Download the file again.",
            ) from None
        self.at = at
        try:
            return [text.decode("utf-8") for text in raw]
        except UnicodeDecodeError:
            return [_text_or_bytes(text) for text in raw]


def _text_or_bytes(raw: bytes) -> str | bytes:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw


def parse_header(data: mmap.mmap | bytes, path: Path) -> Header:
    """Reads and checks everything before the data, the tensors' places in the file included.

    Raises ModelFileError for a damaged file, UnsupportedError for a version, byte order or tensor
    type that is not read.
    """
    cursor = _Cursor(data, path)
    version = _check_start(cursor)
    tensor_count = cursor.number("Q", "the tensor count")
    key_count = cursor.number("Q", "the key count")
    for count, least, what in (
        (key_count, _KEY_MIN, "keys"),
        (tensor_count, _TENSOR_MIN, "tensors"),
    ):
        if count * least > cursor.end:
            raise cursor.fail(
                f"the header announces {count:,} {what}, which take {count * least:,} bytes or "
                f"more; the file has {cursor.end:,}"
            )
    metadata = _metadata(cursor, key_count)
    alignment = _alignment(cursor, metadata)
    raw = [_tensor(cursor) for _ in range(tensor_count)]
    data_start = -(-cursor.at // alignment) * alignment
    return Header(
        version, metadata, _place(cursor, raw, alignment, data_start), alignment, data_start
    )


def _check_start(cursor: _Cursor) -> int:
    start = bytes(cursor.data[:512])
    if start[:4] != MAGIC:
        raise cursor.fail(f"this is no GGUF file: {describe_content(start)}")
    cursor.at = 4
    version: int = cursor.number("I", "the version")
    if version in (2, 3):
        return version
    if version and version & 0xFFFF == 0:
        raise UnsupportedError(
            f"{cursor.path}: the file is big-endian; only little-endian files are read",
            hint="Convert it with gguf-py's `gguf-convert-endian FILE little`.",
        )
    raise UnsupportedError(
        f"{cursor.path}: GGUF version {version} is not read; allowed: 2 and 3",
        hint="Convert the model again with a current convert_hf_to_gguf.py."
        if version == 1
        else None,
    )


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.text(f"the name of key {index}")
        if not key:
            raise cursor.fail(f"key {index} has an empty name")
        if key in metadata:
            raise cursor.fail(f"key {key!r} appears twice")
        metadata[key] = cursor.value(key)
    return metadata


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if isinstance(value, bool) or not isinstance(value, int):
        raise cursor.fail(f"general.alignment is {value!r:.{_SHOWN}}; it must be an integer")
    if value <= 0 or value & (value - 1):
        raise cursor.fail(f"general.alignment is {value}; it must be a power of two above 0")
    return value


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """(name, row-major shape, type, offset from the data's start)."""
    name = cursor.text("a tensor's name")
    if not name:
        raise cursor.fail("a tensor has an empty name")
    dims = cursor.number("I", f"the dimension count of tensor {name!r}")
    if not 1 <= dims <= _MAX_DIMS:
        raise cursor.fail(f"tensor {name!r} has {dims} dimensions; allowed: 1 to {_MAX_DIMS}")
    shape = tuple(cursor.number("Q", f"dimension {i} of tensor {name!r}") for i in range(dims))
    elements = 1
    for size in shape:
        elements *= size
    if elements == 0 or elements >= 1 << 63:
        raise cursor.fail(f"tensor {name!r} has shape {list(shape)}, which is empty or overflows")
    kind = cursor.number("I", f"the type of tensor {name!r}")
    return name, shape[::-1], kind, cursor.number("Q", f"the offset of tensor {name!r}")


def _place(
    cursor: _Cursor,
    raw: list[tuple[str, tuple[int, ...], int, int]],
    alignment: int,
    data_start: int,
) -> dict[str, TensorInfo]:
    """Sizes and places: known types, whole blocks, aligned, inside the file, none on another."""
    tensors: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in raw:
        if name in tensors:
            raise cursor.fail(f"tensor {name!r} appears twice")
        try:
            fmt = by_gguf_type(kind)
        except UnsupportedError as error:
            raise UnsupportedError(f"{cursor.path}: tensor {name!r}: {error.message}") from None
        weights, block = block_of(fmt)
        if shape[-1] % weights:
            raise cursor.fail(
                f"tensor {name!r} has rows of {shape[-1]} weights, which {fmt.name.upper()} cannot "
                f"hold: its blocks are {weights} wide"
            )
        row_bytes = shape[-1] // weights * block
        nbytes = row_bytes
        for size in shape[:-1]:
            nbytes *= size
        if offset % alignment:
            raise cursor.fail(
                f"tensor {name!r} starts at offset {offset}, which is no multiple of the "
                f"alignment {alignment}"
            )
        start = data_start + offset
        if start + nbytes > cursor.end:
            raise cursor.fail(
                f"tensor {name!r} needs bytes {start:,} to {start + nbytes:,}; the file ends at "
                f"{cursor.end:,}",
                hint="The file is truncated: download it again.",
            )
        tensors[name] = TensorInfo(name, shape, fmt, start, nbytes, row_bytes)
    ordered = sorted(tensors.values(), key=lambda t: t.offset)
    for first, second in itertools.pairwise(ordered):
        if first.offset + first.nbytes > second.offset:
            raise cursor.fail(f"tensors {first.name!r} and {second.name!r} overlap in the file")
    return tensors
