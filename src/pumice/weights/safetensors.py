"""Safetensors files, mapped, with their headers checked.

Format: https://github.com/huggingface/safetensors#format: u64 length of the header, the header
(JSON: name → dtype, shape, data_offsets from the header's end), the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pumice.dtypes import itemsize, numpy_dtype
from pumice.errors import ModelFileError, UnsupportedError
from pumice.files import storage_error
from pumice.weights.magic import describe_content
from pumice.weights.mapping import MappedFile

_HEADER_LIMIT = 100_000_000  # as the format's own library has it
#: safetensors dtype → ours
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8",
}  # fmt: skip
_NAMES = {ours: theirs for theirs, ours in DTYPES.items()}
#: other dtypes of the format that have whole bytes, so that their place in the file can be checked
_OTHER_SIZES = {"BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies. dtype is the format's name (F32, BF16 …); offset is the file's."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class SafetensorsFile:
    """One open file. tensors: name → StoredTensor. ModelFileError when it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        try:
            self.tensors = _read_header(self._file)
        except BaseException:
            self._file.close()
            raise

    def array(self, name: str) -> np.ndarray:
        """The tensor as it is stored: a view of the map, not writable."""
        tensor = self.tensors[name]
        if tensor.dtype not in DTYPES:
            raise UnsupportedError(
                f"{self.path}: tensor {name!r} has type {tensor.dtype}; known: {', '.join(DTYPES)}"
            )
        dtype = numpy_dtype(DTYPES[tensor.dtype])
        raw = self._file.view(tensor.offset, tensor.nbytes)
        array: np.ndarray = raw.view(dtype).reshape(tensor.shape)
        return array

    def release(self, name: str) -> None:
        """The tensor's pages need not stay in this process; reading it again is allowed."""
        tensor = self.tensors[name]
        self._file.release(tensor.offset, tensor.nbytes)

    def close(self) -> None:
        self._file.close()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"{key!r} appears twice")
        result[key] = value
    return result


def _read_header(file: MappedFile) -> dict[str, StoredTensor]:
    path, data, end = file.path, file.data, len(file)

    def fail(problem: str, hint: str | None = None) -> ModelFileError:
        return ModelFileError(f"{path}: {problem}", hint=hint)

    if end < 8:
        raise fail(f"the file is cut off: it has {end} bytes")
    length = int.from_bytes(data[:8], "little")
    if not 2 <= length <= _HEADER_LIMIT or data[8:9] != b"{":
        raise fail(f"this is no safetensors file: {describe_content(bytes(data[:512]))}")
    if length > end - 8:
        raise fail(
            f"the header needs bytes 8 to {8 + length:,}; the file ends at {end:,}",
            hint="The file is truncated: download it again.",
        )
    try:
        header = json.loads(bytes(data[8 : 8 + length]), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise fail(f"the header is damaged: {str(error)[:200]}") from None
    if not isinstance(header, dict):
        raise fail("the header is no JSON object")
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        tensor = _stored(name, entry, 8 + length)
        if isinstance(tensor, str):
            raise fail(f"tensor {name!r}: {tensor}")
        if tensor.offset + tensor.nbytes > end:
            raise fail(
                f"tensor {name!r} needs bytes {tensor.offset:,} to "
                f"{tensor.offset + tensor.nbytes:,}; the file ends at {end:,}",
                hint="The file is truncated: download it again.",
            )
        tensors[name] = tensor
    reached, previous = 8 + length, ""
    for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if tensor.offset < reached:
            raise fail(f"tensors {previous!r} and {tensor.name!r} overlap in the file")
        reached, previous = tensor.offset + tensor.nbytes, tensor.name
    return tensors


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _stored(name: str, entry: object, start: int) -> StoredTensor | str:
    """The checked entry, or what is wrong with it."""
    if not isinstance(entry, dict):
        return "its entry is no JSON object"
    dtype, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        return f"its dtype is {dtype!r:.80}"
    if not isinstance(shape, list) or len(shape) > 16 or not all(_is_size(n) for n in shape):
        return f"its shape is {shape!r:.80}"
    if not isinstance(span, list) or len(span) != 2 or not all(_is_size(n) for n in span):
        return f"its data_offsets are {span!r:.80}"
    nbytes = span[1] - span[0]
    if nbytes < 0:
        return f"its data_offsets {span} run backwards"
    size = itemsize(DTYPES[dtype]) if dtype in DTYPES else _OTHER_SIZES.get(dtype)
    if size is not None:
        expected = size
        for n in shape:
            expected *= n
        if expected != nbytes:
            return (
                f"{dtype} of shape {shape} takes {expected:,} bytes; data_offsets give {nbytes:,}"
            )
    return StoredTensor(name, dtype, tuple(shape), start + span[0], nbytes)


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor to be written. dtype is one of pumice.dtypes."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        size = itemsize(self.dtype)
        for n in self.shape:
            size *= n
        return size


def _header_bytes(planned: Sequence[PlannedTensor]) -> bytes:
    """The length and the header, padded so that the data starts at a multiple of 64."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in planned:
        header[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return len(text).to_bytes(8, "little") + text


def written_size(planned: Sequence[PlannedTensor]) -> int:
    """Bytes of the file that `write` makes."""
    return len(_header_bytes(planned)) + sum(t.nbytes for t in planned)


def write(
    handle: BinaryIO, path: Path, planned: Sequence[PlannedTensor], arrays: Iterable[np.ndarray]
) -> Iterator[str]:
    """Writes the planned tensors in order, pulling one array at a time; yields each written name.

    StorageError when the disk is full.
    """
    pulled = iter(arrays)
    try:
        handle.write(_header_bytes(planned))
        for tensor in planned:
            array = next(pulled)
            assert array.nbytes == tensor.nbytes, tensor.name
            handle.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            yield tensor.name
    except OSError as error:
        raise storage_error(error, path) from error
