"""One view of a model's weights, whatever they are stored in.

`open_source` gives a `WeightSource` for a GGUF file or a directory of safetensors, those that
`pumice quantize` wrote included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.errors import ModelFileError, UnsupportedError
from pumice.quantization import FORMATS, AffineWeight, QuantFormat
from pumice.quantization.gguf_families import GGUF_BLOCKS
from pumice.weights.checkpoint import Checkpoint
from pumice.weights.gguf import GGUFFile
from pumice.weights.magic import describe_content
from pumice.weights.safetensors import DTYPES
from pumice.weights.stored import StoredFormat, stored_format

Loaded = tuple[QuantFormat, AffineWeight | np.ndarray]

_DENSE = {fmt.dense_dtype: fmt for fmt in FORMATS if not fmt.affine}


class WeightSource(Protocol):
    """Weights by the names that the file gives them.

    kind: "gguf" or "safetensors" (decides the name map). path: the file or directory.
    config: GGUF's metadata, or config.json.
    """

    kind: str
    path: Path

    @property
    def config(self) -> Mapping[str, Any]: ...

    def names(self) -> tuple[str, ...]:
        """Every tensor, in the file's order."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Row-major: (N, K) for a matrix from K inputs to N outputs."""
        ...

    def format(self, name: str) -> QuantFormat:
        """In which format `affine_or_dense` will give the tensor; reads no data."""
        ...

    def affine_or_dense(self, name: str) -> Loaded:
        """The format and the value: an AffineWeight [N, K], or an array of the tensor's shape.

        A dense array may be a view of the file (not writable, valid until `close`).
        """
        ...

    def release(self, name: str) -> None:
        """The file's pages of this tensor need not stay in memory; reading it again is allowed."""
        ...

    def close(self) -> None: ...


class _Closing(ABC):
    @abstractmethod
    def close(self) -> None:
        """Gives the file back."""

    def __enter__(self: Any) -> Any:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class GGUFSource(_Closing):
    """A GGUF file as a WeightSource. A tensor of more than two dimensions comes as [product, K]."""

    kind = "gguf"

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.path = file.path

    @property
    def config(self) -> Mapping[str, Any]:
        return self.file.metadata

    def names(self) -> tuple[str, ...]:
        return tuple(self.file.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.file.info(name).shape

    def format(self, name: str) -> QuantFormat:
        return self.file.info(name).format

    def affine_or_dense(self, name: str) -> Loaded:
        info = self.file.info(name)
        raw = self.file.raw(name)
        if info.format.affine:
            weight = GGUF_BLOCKS[info.format.name][3](raw)
            self.file.release(name)  # unpacking has copied everything
            return info.format, weight
        assert info.format.dense_dtype is not None
        return info.format, raw.view(numpy_dtype(info.format.dense_dtype)).reshape(info.shape)

    def release(self, name: str) -> None:
        self.file.release(name)

    def close(self) -> None:
        self.file.close()


class CheckpointSource(_Closing):
    """A directory of safetensors as a WeightSource, float or quantized by `pumice quantize`.

    In a quantized directory `x.q_weight`, `x.q_scale` and `x.q_min` stand for `x.weight`.
    """

    kind = "safetensors"

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.path = checkpoint.path
        self.stored: StoredFormat | None = stored_format(checkpoint)

    @property
    def config(self) -> Mapping[str, Any]:
        return self.checkpoint.config

    def names(self) -> tuple[str, ...]:
        if self.stored is None:
            return tuple(self.checkpoint.tensors)
        return self.stored.names

    def shape(self, name: str) -> tuple[int, ...]:
        if self.stored is not None and name in self.stored.shapes:
            return self.stored.shapes[name]
        return self._tensor(name)[0]

    def _tensor(self, name: str) -> tuple[tuple[int, ...], str]:
        tensor = self.checkpoint.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{self.path} has no tensor {name!r}")
        return tensor.shape, tensor.dtype

    def format(self, name: str) -> QuantFormat:
        if self.stored is not None and name in self.stored.shapes:
            return self.stored.format
        dtype = self._tensor(name)[1]
        fmt = _DENSE.get(DTYPES.get(dtype))
        if fmt is None:
            raise UnsupportedError(
                f"{self.path}: tensor {name!r} has type {dtype}; allowed: F32, F16, BF16"
            )
        return fmt

    def affine_or_dense(self, name: str) -> Loaded:
        if self.stored is not None and name in self.stored.shapes:
            return self.stored.format, self.stored.load(name)
        return self.format(name), self.checkpoint.array(name)

    def release(self, name: str) -> None:
        if name in self.checkpoint.tensors:
            self.checkpoint.release(name)

    def close(self) -> None:
        self.checkpoint.close()


def open_source(path: str | Path) -> GGUFSource | CheckpointSource:
    """Opens a GGUF file or a directory; headers only, data comes when it is asked for.

    Raises ModelFileError (missing, damaged, truncated) or UnsupportedError (a valid file of a kind
    that is not read).
    """
    path = Path(path)
    if path.is_dir():
        return _open_directory(path)
    if path.exists() and not path.is_file():
        raise ModelFileError(
            f"{path} is a device, a socket or a named pipe; allowed: a file or a directory"
        )
    try:
        with path.open("rb") as handle:
            start = handle.read(512)
    except FileNotFoundError:
        raise ModelFileError(f"{path}: there is no such file or directory") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from None
    if path.suffix == ".safetensors":
        raise ModelFileError(
            f"{path} is one file of a checkpoint; its directory is what is opened",
            hint=f"Give {path.parent}.",
        )
    if start[:4] != b"GGUF" and path.suffix != ".gguf":
        raise ModelFileError(
            f"{path} is no GGUF file and no directory of safetensors: {describe_content(start)}"
        )
    return GGUFSource(GGUFFile.open(path))


def _open_directory(path: Path) -> GGUFSource | CheckpointSource:
    if any(path.glob("*.safetensors")) or (path / "config.json").is_file():
        return CheckpointSource(Checkpoint(path))
    files = [p for p in sorted(path.glob("*.gguf")) if not _is_later_part(p.name)]
    if len(files) == 1:
        return GGUFSource(GGUFFile.open(files[0]))
    if files:
        names = ", ".join(p.name for p in files)
        raise ModelFileError(
            f"{path} holds {len(files)} GGUF files: {names}", hint="Name one of them."
        )
    raise ModelFileError(
        f"{path} holds no model: it has neither config.json and .safetensors nor a .gguf file"
    )


def _is_later_part(name: str) -> bool:
    stem = name.removesuffix(".gguf").split("-")
    return len(stem) > 3 and stem[-2] == "of" and stem[-3].isdigit() and int(stem[-3]) > 1
