"""How `pumice quantize` stores quantized tensors in safetensors, and how they are read back.

MLC-LLM's parameter names and layout: the matrix `x.weight` becomes
    x.q_weight  uint32[N, K·bits/32]   codes along K, the lowest k in the lowest bits
    x.q_scale   float16[N, K/32]
    x.q_min     float16[N, K/32]       formats with minima only
and config.json says which format: `"quantization": {"format": "q4f16_1", "group_size": 32}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.errors import ModelFileError, UnsupportedError
from pumice.quantization import FORMATS, AffineWeight, QuantFormat
from pumice.quantization.mlc import pack_words, unpack_words
from pumice.weights.checkpoint import Checkpoint
from pumice.weights.safetensors import PlannedTensor

_WORDS, _SCALES, _MINS = ".q_weight", ".q_scale", ".q_min"


def entry(fmt: QuantFormat) -> dict[str, Any]:
    """config.json's `quantization`."""
    return {"format": fmt.name, "group_size": fmt.group}


def planned(name: str, fmt: QuantFormat, shape: tuple[int, ...]) -> list[PlannedTensor]:
    """The tensors that the matrix `name` is stored as."""
    n, k = shape
    base = name.removesuffix(".weight")
    tensors = [
        PlannedTensor(base + _WORDS, "uint32", (n, k * fmt.bits // 32)),
        PlannedTensor(base + _SCALES, "float16", (n, k // fmt.group)),
    ]
    if fmt.has_min:
        tensors.append(PlannedTensor(base + _MINS, "float16", (n, k // fmt.group)))
    return tensors


def arrays(fmt: QuantFormat, weight: AffineWeight) -> list[np.ndarray]:
    """Their contents, in the order of `planned`."""
    result = [pack_words(weight.codes, fmt.bits), weight.scales]
    if weight.mins is not None:
        result.append(weight.mins)
    return result


@dataclass(frozen=True)
class StoredFormat:
    """A quantized directory. shapes: matrix → (N, K). names: all tensors, by the model's names."""

    checkpoint: Checkpoint
    format: QuantFormat
    shapes: dict[str, tuple[int, int]]
    names: tuple[str, ...]

    def load(self, name: str) -> AffineWeight:
        base = name.removesuffix(".weight")
        read = self.checkpoint.array
        codes = unpack_words(read(base + _WORDS), self.format.bits)
        self.checkpoint.release(base + _WORDS)
        mins = read(base + _MINS) if self.format.has_min else None
        return AffineWeight(codes, read(base + _SCALES), mins)


def stored_format(checkpoint: Checkpoint) -> StoredFormat | None:
    """What config.json says of quantization, checked against the tensors; None for floats.

    UnsupportedError for another tool's quantization, ModelFileError for tensors that do not fit.
    """
    path, config = checkpoint.path, checkpoint.config
    other = config.get("quantization_config") or config.get("compression_config")
    if other:
        method = other.get("quant_method", "unknown") if isinstance(other, dict) else other
        raise UnsupportedError(
            f"{path} is quantized by another tool (quant_method {method!r:.80}), which is not read",
            hint="Use the model's float checkpoint: it is quantized on load.",
        )
    said = config.get("quantization")
    if not said:
        return None
    known = [f.name for f in FORMATS if f.quantize is not None]
    name = said.get("format") if isinstance(said, dict) else None
    fmt = next((f for f in FORMATS if f.name == name and f.quantize is not None), None)
    if fmt is None or said.get("group_size", fmt.group) != fmt.group:
        raise UnsupportedError(
            f"{path / 'config.json'} has quantization {said!r:.120}; known: {', '.join(known)}"
        )
    return _check(checkpoint, fmt)


def _check(checkpoint: Checkpoint, fmt: QuantFormat) -> StoredFormat:
    shapes: dict[str, tuple[int, int]] = {}
    names: list[str] = []
    for name, tensor in checkpoint.tensors.items():
        if name.endswith((_SCALES, _MINS)):
            base = name.rsplit(".", 1)[0]
            if base + _WORDS not in checkpoint.tensors:
                raise ModelFileError(f"{checkpoint.path}: {name!r} has no {base + _WORDS!r}")
            continue
        if not name.endswith(_WORDS):
            names.append(name)
            continue
        weight = name.removesuffix(_WORDS) + ".weight"
        if len(tensor.shape) != 2 or tensor.shape[1] * 32 % (fmt.bits * fmt.group):
            raise ModelFileError(
                f"{checkpoint.path}: {name!r} has shape {list(tensor.shape)}, which no {fmt.name} "
                "matrix has"
            )
        n, k = tensor.shape[0], tensor.shape[1] * 32 // fmt.bits
        for part in planned(weight, fmt, (n, k)):
            found = checkpoint.tensors.get(part.name)
            wanted = {"uint32": "U32", "float16": "F16"}[part.dtype]
            if found is None or found.shape != part.shape or found.dtype != wanted:
                has = "missing" if found is None else f"{found.dtype} {list(found.shape)}"
                raise ModelFileError(
                    f"{checkpoint.path}: {part.name!r} is {has}; {fmt.name} needs {wanted} "
                    f"{list(part.shape)}"
                )
        shapes[weight] = (n, k)
        names.append(weight)
    return StoredFormat(checkpoint, fmt, shapes, tuple(names))
