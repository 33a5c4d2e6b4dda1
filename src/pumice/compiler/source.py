"""A model as the compiler takes it: record, config, formats, weights one by one, and its text
files.

`open_model` gives one for a GGUF file, a directory of safetensors, or "random:<shape>" (a published
model's shapes with random
weights, for benchmarks without a download).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from pumice.compiler.weights import Loaded
from pumice.dtypes import numpy_dtype
from pumice.errors import UsageError
from pumice.models import get_shape
from pumice.models.config import ModelConfig
from pumice.models.record import ModelRecord
from pumice.quantization import AffineWeight, QuantFormat, get_format
from pumice.quantization.pack import dequantize
from pumice.weights.bind import bind, identify
from pumice.weights.source import open_source

DEFAULT_QUANTIZATION = "q4f16_1"  # of float checkpoints
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
_VECTOR = get_format("f32")


class ModelSource(ABC):
    """What phases read. `formats` and `shapes` are by parameter; `load` gives one parameter's value
    in its format."""

    name: str
    path: str
    quantization: str
    record: ModelRecord
    config: ModelConfig
    formats: dict[str, QuantFormat]
    shapes: dict[str, tuple[int, ...]]

    @abstractmethod
    def load(self, parameter: str) -> Loaded:
        """A parameter's value, in its format."""

    def save_text(self, directory: Path) -> None:  # noqa: B027 a hook
        """Writes tokenizer, chat template and generation settings into an artifact."""

    def close(self) -> None:  # noqa: B027 a hook
        """Gives files back."""

    def __enter__(self) -> ModelSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_model(source: str | Path, quantization: str | None) -> ModelSource:
    """Opens a model for compiling; checks every tensor's name and shape.

    quantization: a format's name, or None (see `CompileOptions`).
    Raises ModelFileError, WeightMismatchError, UnsupportedError, UsageError.
    """
    if quantization is not None:
        fmt = get_format(quantization)
        if fmt.affine and fmt.quantize is None:
            raise UsageError(
                f"weights cannot be turned into {fmt.name}, which only exists in files; "
                "allowed: f32, f16, "
                "bf16, q4f16_1, q4f16_1_min, q8f16"
            )
    if str(source).startswith("random:"):
        return RandomModel(str(source).removeprefix("random:"), quantization)
    return FileModel(Path(source), quantization)


def _format(source: QuantFormat, shape: tuple[int, ...], wanted: QuantFormat | None) -> QuantFormat:
    """The format that a weight is packed in."""
    if len(shape) == 1:
        return _VECTOR
    fmt = source if wanted is None else wanted
    if fmt.affine and shape[1] % fmt.group:
        return get_format("f16")  # no whole groups along K
    return fmt


class FileModel(ModelSource):
    """A GGUF file or a directory of safetensors."""

    def __init__(self, path: Path, quantization: str | None) -> None:
        self._source = open_source(path)
        try:
            self._open(path, quantization)
        except BaseException:
            self._source.close()
            raise

    def _open(self, path: Path, quantization: str | None) -> None:
        source = self._source
        self.record, self.config = identify(source)
        self._bound = bind(self.record, self.config, source)
        self.shapes = self._bound.shapes
        self.path = str(path)
        gguf = source.kind == "gguf"
        self.name = str(source.config.get("general.name") or path.stem if gguf else path.name)
        wanted = get_format(quantization) if quantization is not None else None
        stored = self._bound.formats
        if wanted is None and not gguf and not any(f.affine for f in stored.values()):
            wanted = get_format(DEFAULT_QUANTIZATION)
        self.formats = {p: _format(f, self.shapes[p], wanted) for p, f in stored.items()}
        self.quantization = _summary(self.formats, self.shapes)

    def load(self, parameter: str) -> Loaded:
        fmt = self.formats[parameter]
        stored, value = self._bound.load(parameter)
        result = _convert(value, stored, fmt)
        self._bound.release(parameter)
        return fmt, result

    def save_text(self, directory: Path) -> None:
        from pumice.text.tokenizer import Tokenizer

        if self._source.kind == "gguf":
            tokenizer = Tokenizer.from_gguf_metadata(self._source.config)
        elif any((Path(self.path) / name).exists() for name in TOKENIZER_FILES):
            tokenizer = Tokenizer.from_directory(Path(self.path))
        else:
            return  # weights alone: token ids in, token ids out
        tokenizer.save(directory)

    def close(self) -> None:
        self._source.close()


def _convert(
    value: AffineWeight | np.ndarray, stored: QuantFormat, fmt: QuantFormat
) -> AffineWeight | np.ndarray:
    """A value in another format; the same format is passed on untouched."""
    if stored.name == fmt.name:
        return value
    if isinstance(value, AffineWeight):
        value = dequantize(value, stored)
    if fmt.quantize is not None:
        return fmt.quantize(np.asarray(value, dtype=np.float32))
    assert fmt.dense_dtype is not None
    return value.astype(numpy_dtype(fmt.dense_dtype))


def _summary(formats: Mapping[str, QuantFormat], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The formats of the matrices, the most weights first: "q4_1, q8_0"."""
    counts: dict[str, int] = {}
    for parameter, fmt in formats.items():
        if len(shapes[parameter]) > 1:
            counts[fmt.name] = counts.get(fmt.name, 0) + int(np.prod(shapes[parameter]))
    return ", ".join(sorted(counts, key=lambda name: -counts[name]))


class RandomModel(ModelSource):
    """A published model's shapes with random weights: for speed, not for text. It has no
    tokenizer."""

    _POOL = (
        1 << 25
    )  # random codes, read at a moving offset: making 7 G of them anew would take minutes

    def __init__(self, shape: str, quantization: str | None) -> None:
        self.record, self.config = get_shape(shape)
        self.name, self.path = f"{shape} (random weights)", f"random:{shape}"
        self.shapes = self.record.parameters(self.config)
        wanted = get_format(quantization or DEFAULT_QUANTIZATION)
        self.formats = {p: _format(wanted, s, wanted) for p, s in self.shapes.items()}
        self._constants = self.record.constants(self.config)
        self.formats.update(dict.fromkeys(self._constants, _VECTOR))
        self.quantization = _summary(self.formats, self.shapes)
        self._rng = np.random.default_rng(0)
        self._bytes = self._rng.integers(0, 256, self._POOL, dtype=np.uint8)

    def load(self, parameter: str) -> Loaded:
        fmt, shape = self.formats[parameter], self.shapes[parameter]
        if parameter in self._constants:
            return fmt, self._constants[parameter]
        if len(shape) == 1:
            bias = parameter.endswith(".bias")
            return fmt, np.full(shape, 0.0 if bias else 1.0, np.float32)
        n, k = shape
        if not fmt.affine:
            assert fmt.dense_dtype is not None
            values = self._rng.standard_normal((n, k), dtype=np.float32) * np.float32(k**-0.5)
            return fmt, values.astype(numpy_dtype(fmt.dense_dtype))
        codes = np.resize(self._bytes[int(self._rng.integers(0, 4096)) :], (n, k))
        if fmt.code_max < 255:
            codes &= np.uint8(fmt.code_max)
        # Scales that keep the activations' size from layer to layer: Var(codes) = (code_max² −
        # 1)/12 or so.
        size = 3.46 / (fmt.code_max * k**0.5)
        spread = self._rng.uniform(0.9, 1.1, (n, k // fmt.group)) * size
        scales = spread.astype(numpy_dtype(fmt.scale_dtype))
        mins = (scales * (fmt.code_max / 2)).astype(scales.dtype) if fmt.has_min else None
        return fmt, AffineWeight(codes, scales, mins)
