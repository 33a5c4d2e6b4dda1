"""Float weights turned into another format: on load, one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.errors import ModelFileError, UnsupportedError
from pumice.quantization import AffineWeight, QuantFormat
from pumice.quantization.pack import dequantize
from pumice.weights.source import Loaded, WeightSource

_RUN_WEIGHTS = 1 << 22  # float32 weights that are in memory at once


def is_quantizable(name: str, shape: tuple[int, ...], fmt: QuantFormat) -> bool:
    """Whether a tensor takes part: matrices (embeddings included) whose rows are whole groups."""
    return len(shape) == 2 and name.endswith("weight") and shape[1] % fmt.group == 0


def quantize_matrix(array: np.ndarray, fmt: QuantFormat) -> AffineWeight:
    """float[N, K] (any float dtype) → `fmt`, by runs of rows so that little memory is needed.

    ModelFileError when a value is not finite or too large for a float16 scale.
    """
    assert fmt.quantize is not None
    n, k = array.shape
    scales = np.empty((n, k // fmt.group), numpy_dtype(fmt.scale_dtype))
    result = AffineWeight(
        np.empty((n, k), np.uint8), scales, np.empty_like(scales) if fmt.has_min else None
    )
    run = max(1, _RUN_WEIGHTS // max(1, k))
    for start in range(0, n, run):
        rows = slice(start, start + run)
        part = fmt.quantize(array[rows].astype(np.float32))
        result.codes[rows] = part.codes
        result.scales[rows] = part.scales
        if result.mins is not None:
            assert part.mins is not None
            result.mins[rows] = part.mins
    return result


def convert_dense(array: np.ndarray, fmt: QuantFormat) -> np.ndarray:
    """A float array in a dense format's dtype; ModelFileError when a value does not fit it."""
    assert fmt.dense_dtype is not None
    dtype = numpy_dtype(fmt.dense_dtype)
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(dtype)
    if not np.isfinite(converted.astype(np.float32)).all():
        raise ModelFileError(f"the weights hold values that {fmt.name} cannot")
    return converted


class Quantized:
    """A WeightSource whose float matrices come in `fmt`; vectors stay as they are.

    Weights that are quantized already are given as they are when `fmt` is theirs, dequantized when
    `fmt` is dense, and refused otherwise: quantizing twice loses accuracy.
    """

    def __init__(self, source: WeightSource, fmt: QuantFormat) -> None:
        if fmt.affine and fmt.quantize is None:
            raise UnsupportedError(
                f"{fmt.name} is GGUF's own format: weights are read from it, not turned into it"
            )
        self.source = source
        self.target = fmt
        self.kind, self.path = source.kind, source.path
        for name in source.names():
            if not self._takes_part(name):
                continue
            held = source.format(name)
            if held.affine and fmt.affine and held.name != fmt.name:
                raise UnsupportedError(
                    f"{source.path} is quantized already: {name!r} is {held.name}, and {fmt.name} "
                    "was asked for; quantizing twice loses accuracy",
                    hint="Use the float checkpoint, or leave the format as the file has it.",
                )

    @property
    def config(self) -> Mapping[str, Any]:
        return self.source.config

    def names(self) -> tuple[str, ...]:
        return self.source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.source.shape(name)

    def _takes_part(self, name: str) -> bool:
        return is_quantizable(name, self.source.shape(name), self.target)

    def format(self, name: str) -> QuantFormat:
        return self.target if self._takes_part(name) else self.source.format(name)

    def affine_or_dense(self, name: str) -> Loaded:
        fmt, value = self.source.affine_or_dense(name)
        if not self._takes_part(name) or fmt.name == self.target.name:
            return fmt, value
        result = self._convert(name, fmt, value)
        if result is not value:
            self.release(name)
        return self.target, result

    def _convert(
        self, name: str, fmt: QuantFormat, value: AffineWeight | np.ndarray
    ) -> AffineWeight | np.ndarray:
        try:
            if isinstance(value, AffineWeight):
                return convert_dense(dequantize(value, fmt), self.target)
            if self.target.affine:
                return quantize_matrix(value, self.target)
            return convert_dense(value, self.target)
        except ModelFileError as error:
            raise ModelFileError(f"{self.path}: tensor {name!r}: {error.message}") from None

    def release(self, name: str) -> None:
        self.source.release(name)

    def close(self) -> None:
        self.source.close()

    def __enter__(self) -> Quantized:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def quantized(source: WeightSource, fmt: QuantFormat | None) -> WeightSource:
    """`source` in `fmt`; None leaves it as it is."""
    return source if fmt is None else Quantized(source, fmt)


def is_float(source: WeightSource) -> bool:
    """Whether no matrix of the source is quantized."""
    names: list[str] = [n for n in source.names() if len(source.shape(n)) >= 2]
    return not any(source.format(name).affine for name in names)
