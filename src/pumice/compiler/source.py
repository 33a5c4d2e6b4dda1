"""A model as the compiler takes it: record, config, formats, weights one by one, and its text files.

`open_model` gives one for a GGUF file, a directory of safetensors, or "random:<shape>" (a published model's shapes with random
weights, for benchmarks without a download).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import numpy as np

from pumice.compiler.weights import Loaded
from pumice.dtypes import numpy_dtype
from pumice.errors import UnsupportedError, UsageError, WeightMismatchError
from pumice.models import get_gguf_model, get_model, get_shape
from pumice.models.config import ModelConfig
from pumice.models.record import ROPE_FACTORS, ModelRecord, SourceRule, unpermute
from pumice.quantization import AffineWeight, QuantFormat, get_format
from pumice.quantization.pack import dequantize
from pumice.weights.source import WeightSource, open_source

DEFAULT_QUANTIZATION = "q4f16_1"  # of float checkpoints
_VECTOR = get_format("f32")


class ModelSource:
    """What phases read. `formats` and `shapes` are by parameter; `load` gives one parameter's value in its format."""

    name: str
    path: str
    quantization: str
    record: ModelRecord
    config: ModelConfig
    formats: dict[str, QuantFormat]
    shapes: dict[str, tuple[int, ...]]

    def load(self, parameter: str) -> Loaded:
        raise NotImplementedError

    def save_text(self, directory: Path) -> None:
        """Writes tokenizer, chat template and generation settings into an artifact."""

    def close(self) -> None:
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
                f"weights cannot be turned into {fmt.name}, which only exists in files; allowed: f32, f16, "
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
        self._source: WeightSource = open_source(path)
        try:
            self._open(path, quantization)
        except BaseException:
            self._source.close()
            raise

    def _open(self, path: Path, quantization: str | None) -> None:
        source = self._source
        names = source.names()
        self.path = str(path)
        gguf = source.kind == "gguf"
        if gguf:
            architecture = source.config.get("general.architecture")
            if not isinstance(architecture, str):
                raise UnsupportedError(f"{path} does not say its architecture (general.architecture)")
            self.record = get_gguf_model(architecture)
            self.config = self.record.config_from_gguf(source.config, names)
        else:
            model_type = source.config.get("model_type")
            if not isinstance(model_type, str):
                raise UnsupportedError(f"{path}/config.json does not say its model_type")
            self.record = get_model(model_type)
            self.config = self.record.config_from_hf(source.config)
        self.name = str(source.config.get("general.name") or path.stem if gguf else path.name)
        kind = "gguf" if gguf else "hf"
        self._rules = self.record.weight_map(self.config, kind)
        self.shapes = self.record.parameters(self.config)
        check_weights(source, self._rules, self.shapes, self.record.known_extra(kind))
        factors = None
        if gguf and ROPE_FACTORS in names:
            factors = np.asarray(source.affine_or_dense(ROPE_FACTORS)[1])
        self._constants = self.record.constants(self.config, factors)
        stored = {p: source.format(rule.name) for p, rule in self._rules.items()}
        wanted = get_format(quantization) if quantization is not None else None
        if wanted is None and not gguf and not any(f.affine for f in stored.values()):
            wanted = get_format(DEFAULT_QUANTIZATION)
        self.formats = {p: _format(f, self.shapes[p], wanted) for p, f in stored.items()}
        self.formats.update(dict.fromkeys(self._constants, _VECTOR))
        self.quantization = _summary(self.formats, self.shapes)

    def load(self, parameter: str) -> Loaded:
        fmt = self.formats[parameter]
        if parameter in self._constants:
            return fmt, self._constants[parameter]
        rule = self._rules[parameter]
        stored, value = self._source.affine_or_dense(rule.name)
        result = _convert(_unpermuted(value, rule), stored, fmt)
        self._source.release(rule.name)
        return fmt, result

    def save_text(self, directory: Path) -> None:
        from pumice.text.tokenizer import Tokenizer

        if self._source.kind == "gguf":
            tokenizer = Tokenizer.from_gguf_metadata(self._source.config)
        else:
            tokenizer = Tokenizer.from_directory(Path(self.path))
        tokenizer.save(directory)

    def close(self) -> None:
        self._source.close()


def check_weights(
    source: WeightSource,
    rules: Mapping[str, SourceRule],
    shapes: Mapping[str, tuple[int, ...]],
    extras: tuple[str, ...],
) -> None:
    """WeightMismatchError that lists every tensor that is missing, misshapen, or not the architecture's."""
    names = set(source.names())
    wanted = {rule.name: shapes[parameter] for parameter, rule in rules.items()}
    missing = [name for name in wanted if name not in names]
    wrong = [
        f"{name} is {list(source.shape(name))} instead of {list(shape)}"
        for name, shape in wanted.items()
        if name in names and tuple(source.shape(name)) != tuple(shape)
    ]
    extra = [
        name
        for name in sorted(names - set(wanted))
        if not any(re.fullmatch(pattern, name) for pattern in extras)
    ]
    problems = [
        f"{title}: {', '.join(items[:8])}{f' and {len(items) - 8} more' if len(items) > 8 else ''}"
        for title, items in (("missing", missing), ("wrong shape", wrong), ("not expected", extra))
        if items
    ]
    if problems:
        raise WeightMismatchError(
            f"{source.path} does not fit its architecture. " + "; ".join(problems),
            hint="The file may be incomplete, or made for another version of the architecture.",
        )


def _unpermuted(value: AffineWeight | np.ndarray, rule: SourceRule) -> AffineWeight | np.ndarray:
    if not rule.unpermute_heads:
        return value
    heads = rule.unpermute_heads
    if isinstance(value, AffineWeight):
        mins = None if value.mins is None else unpermute(value.mins, heads)
        return AffineWeight(unpermute(value.codes, heads), unpermute(value.scales, heads), mins)
    return unpermute(value, heads)


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


def _summary(
    formats: Mapping[str, QuantFormat], shapes: Mapping[str, tuple[int, ...]]
) -> str:
    """The formats of the matrices, the most weights first: "q4_1, q8_0"."""
    counts: dict[str, int] = {}
    for parameter, fmt in formats.items():
        if len(shapes[parameter]) > 1:
            counts[fmt.name] = counts.get(fmt.name, 0) + int(np.prod(shapes[parameter]))
    return ", ".join(sorted(counts, key=lambda name: -counts[name]))


class RandomModel(ModelSource):
    """A published model's shapes with random weights: for speed, not for text. It has no tokenizer."""

    _POOL = 1 << 25  # random codes, read at a moving offset: making 7 G of them anew would take minutes

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
        # Scales that keep the activations' size from layer to layer: Var(codes) = (code_max² − 1)/12 or so.
        size = 3.46 / (fmt.code_max * k**0.5)
        spread = self._rng.uniform(0.9, 1.1, (n, k // fmt.group)) * size
        scales = spread.astype(numpy_dtype(fmt.scale_dtype))
        mins = (scales * (fmt.code_max / 2)).astype(scales.dtype) if fmt.has_min else None
        return fmt, AffineWeight(codes, scales, mins)

