"""Writes weights.safetensors as a stream, tensor by tensor, in the order of its header.

The format (https://github.com/huggingface/safetensors#format) wants the header first, so sizes are
planned before data is made. Every
tensor is opaque bytes of a multiple of 64, and the header is padded to one: mapped, each tensor is
aligned as kernels expect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from pumice.errors import CompileError
from pumice.files import require_space, storage_error

ALIGNMENT = 64


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class WeightWriter:
    """with WeightWriter(path, [(name, nbytes), …]) as w: w.write(name, array) for each, in that
    order."""

    def __init__(self, path: Path, sizes: Sequence[tuple[str, int]]) -> None:
        self._path = path
        self._sizes = list(sizes)
        self._next = 0
        offset = 0
        header: dict[str, object] = {"__metadata__": {"format": "pumice"}}
        for name, nbytes in self._sizes:
            size = padded(nbytes)
            header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
            offset += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (padded(len(text) + 8) - 8 - len(text))
        self._header = len(text).to_bytes(8, "little") + text
        self.nbytes = len(self._header) + offset
        self._file: BinaryIO | None = None

    def __enter__(self) -> WeightWriter:
        require_space(self._path.parent, self.nbytes)
        self._file = self._path.open("wb")
        self._put(self._header)
        return self

    def _put(self, data: bytes | memoryview) -> None:
        assert self._file is not None
        try:
            self._file.write(data)
        except OSError as error:
            raise storage_error(error, self._path) from error

    def write(self, name: str, array: np.ndarray) -> None:
        """Appends a tensor; its name and size must be what was announced."""
        expected, nbytes = self._sizes[self._next]
        if name != expected or array.nbytes != nbytes:
            raise CompileError(
                f"weight {name!r} of {array.nbytes:,} bytes came where {expected!r} of "
                f"{nbytes:,} was "
                "planned"
            )
        self._next += 1
        self._put(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        self._put(b"\0" * (padded(nbytes) - nbytes))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._file is not None
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            if kind is None:
                raise storage_error(error, self._path) from error
        finally:
            self._file.close()
        if kind is None and self._next != len(self._sizes):
            missing = [name for name, _ in self._sizes[self._next :]]
            raise CompileError(f"weights were planned but not written: {', '.join(missing[:5])}")
