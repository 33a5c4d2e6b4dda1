"""GGUF files over mmap: metadata and the list of tensors at once, data only when it is asked for.

A model may be split over files `name-00001-of-00003.gguf`; opening the first opens them all.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from pumice.errors import ModelFileError
from pumice.weights.gguf_header import Header, TensorInfo, parse_header
from pumice.weights.mapping import MappedFile

__all__ = ["GGUFFile", "TensorInfo"]

_SPLIT_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf$")


class GGUFFile:
    """An open GGUF model.

    metadata: key → int, float, bool, str or list. tensors: name → TensorInfo, in the file's order.
    """

    def __init__(
        self,
        path: Path,
        files: list[MappedFile],
        metadata: dict[str, Any],
        tensors: dict[str, TensorInfo],
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._files = files

    @classmethod
    def open(cls, path: str | Path) -> GGUFFile:
        """Opens a file, or all files of a split model given its first one.

        Raises ModelFileError (damaged, truncated, not GGUF, a part missing) and UnsupportedError
        (version, byte order, tensor types that are not known).
        """
        path = Path(path)
        files: list[MappedFile] = []
        try:
            files.append(MappedFile(path))
            header = parse_header(files[0].data, path)
            tensors = dict(header.tensors)
            for index, part in enumerate(_other_parts(path, header), start=1):
                files.append(MappedFile(part))
                _add_part(tensors, parse_header(files[-1].data, part), part, index, header)
            total = header.metadata.get("split.tensors.count", len(tensors))
            if total != len(tensors):
                raise ModelFileError(
                    f"{path}: split.tensors.count is {total!r:.80}; the parts hold {len(tensors)}"
                )
        except BaseException:
            for file in files:
                file.close()
            raise
        return cls(path, files, header.metadata, tensors)

    def raw(self, name: str) -> np.ndarray:
        """A tensor's bytes as they are in the file: a view uint8[N, row bytes].

        N is the product of all dimensions but the last.
        """
        info = self.info(name)
        flat = self._files[info.shard].view(info.offset, info.nbytes)
        return flat.reshape(-1, info.row_bytes)

    def info(self, name: str) -> TensorInfo:
        """The tensor of that name; ModelFileError when the file has none."""
        try:
            return self.tensors[name]
        except KeyError:
            raise ModelFileError(f"{self.path} has no tensor {name!r}") from None

    def release(self, name: str) -> None:
        """A tensor's pages need not stay in this process; reading it again is allowed."""
        info = self.info(name)
        self._files[info.shard].release(info.offset, info.nbytes)

    def close(self) -> None:
        """Closes the files. A view that is still held keeps its file's map until the view goes."""
        for file in self._files:
            file.close()
        self._files = []

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _other_parts(path: Path, header: Header) -> list[Path]:
    """The paths of parts 2 … n of a split model; empty when the file is whole."""
    count = _split_number(header, "split.count", path, 1)
    number = _split_number(header, "split.no", path, 0)
    match = _SPLIT_NAME.match(path.name)
    if match and count == 1 and int(match[3]) > 1:
        raise ModelFileError(
            f"{path}: the name says part {int(match[2])} of {int(match[3])}, but the file has no "
            "split.count"
        )
    if count <= 1:
        return []
    if number != 0:
        first = f"{match[1]}-00001-of-{match[3]}.gguf" if match else "the first part"
        raise ModelFileError(
            f"{path} is part {number + 1} of {count}; a split model is opened by its first part",
            hint=f"Give {path.with_name(first) if match else first}.",
        )
    if not match or int(match[2]) != 1 or int(match[3]) != count:
        raise ModelFileError(
            f"{path} is the first of {count} parts, so its name must end in "
            f"-00001-of-{count:05d}.gguf",
            hint="Give the parts the names that they had.",
        )
    parts = [path.with_name(f"{match[1]}-{i:05d}-of-{count:05d}.gguf") for i in range(2, count + 1)]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ModelFileError(
            f"{path} is the first of {count} parts; missing beside it: "
            f"{', '.join(missing[:5])}{more}"
        )
    return parts


def _split_number(header: Header, key: str, path: Path, default: int) -> int:
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 99999:
        raise ModelFileError(f"{path}: {key} is {value!r:.80}; allowed: 0 to 99999")
    return value


def _add_part(
    tensors: dict[str, TensorInfo], part: Header, path: Path, index: int, first: Header
) -> None:
    for key, expected in (("split.no", index), ("split.count", first.metadata["split.count"])):
        found = part.metadata.get(key)
        if found != expected:
            raise ModelFileError(
                f"{path}: {key} is {found!r:.80}; as part {index + 1} it must be {expected}"
            )
    for name, info in part.tensors.items():
        if name in tensors:
            raise ModelFileError(f"{path}: tensor {name!r} is in an earlier part too")
        tensors[name] = replace(info, shard=index)
