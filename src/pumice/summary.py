"""What a model's headers say, without reading its weights or compiling it: architecture, sizes,
memory need.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.errors import OutOfMemoryError

if TYPE_CHECKING:
    from pumice.models.config import ModelConfig
    from pumice.quantization import QuantFormat
    from pumice.targets import Target

DEFAULT_CONTEXT = 8192  # as the runtime's
GPU_LEAST_CONTEXT = 512  # as the runtime's
RANDOM = "random:"
_DEFAULT_FORMAT = "q4f16_1"  # of float matrices, when nothing else is asked for


@dataclass(frozen=True)
class Tensor:
    """A tensor as the file has it. packed_bytes: what kernels will hold for it."""

    name: str
    shape: tuple[int, ...]
    format: str
    packed_format: str
    packed_bytes: int

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class ModelSummary:
    """A model file or directory. kind: gguf, safetensors or random."""

    path: str
    kind: str
    file_bytes: int
    architecture: str
    config: ModelConfig
    tensors: tuple[Tensor, ...]

    @property
    def parameters(self) -> int:
        return sum(tensor.count for tensor in self.tensors)

    @property
    def weight_bytes(self) -> int:
        """As packed for kernels."""
        return sum(tensor.packed_bytes for tensor in self.tensors)

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of all layers in float16."""
        config = self.config
        return 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim

    def work_bytes(self, max_tokens: int = 512, max_rows: int = 64) -> int:
        """An upper estimate of the arena: a step's widest activations, and rows of logits."""
        config = self.config
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        widths = 4 * config.hidden_size + 4 * config.intermediate_size
        widths += 2 * heads * config.head_dim
        return 4 * (max_tokens * widths + max_rows * config.vocab_size)

    def gpu_bytes(self, target: Target, context: int | None) -> int:
        """About what the model takes at least on a GPU: weights in the forms that its kernels read,
        a cache of `context` tokens (or the fewest that are worth loading), work space.
        """
        from pumice.compiler.gpu.weights import make_weight
        from pumice.quantization import get_format

        weights = sum(
            make_weight(
                t.name, (t.name,), t.shape, get_format(t.packed_format), target, "float16"
            ).nbytes
            for t in self.tensors
        )
        tokens = context or min(self.config.context_length, GPU_LEAST_CONTEXT)
        # Of steps of 2048 tokens, whose activations have 16 bits.
        return weights + tokens * self.cache_bytes_per_token + self.work_bytes(1024)

    def context(self, asked: int | None) -> int:
        """Tokens of cache that a load will make."""
        return asked or min(self.config.context_length, DEFAULT_CONTEXT)

    def types(self) -> list[tuple[str, int, int, int]]:
        """(format, tensors, parameters, packed bytes) of each format in the file, the largest
        first.
        """
        counts: Counter[str] = Counter()
        parameters: Counter[str] = Counter()
        nbytes: Counter[str] = Counter()
        for tensor in self.tensors:
            key = tensor.format
            if tensor.packed_format != key:
                key = f"{key} → {tensor.packed_format}"
            counts[key] += 1
            parameters[key] += tensor.count
            nbytes[key] += tensor.packed_bytes
        return [(k, counts[k], parameters[k], nbytes[k]) for k, _ in nbytes.most_common()]


def summarize(source: str, quantization: str | None) -> ModelSummary:
    """Reads headers only. source: a resolved file or directory, or "random:<shape>".

    Raises what opening the model raises: ModelFileError, UnsupportedError.
    """
    from pumice.models import get_gguf_model, get_model, get_shape
    from pumice.quantization import get_format
    from pumice.weights.quantize import is_float, is_quantizable, quantized
    from pumice.weights.source import open_source

    asked = get_format(quantization) if quantization else None
    default = get_format(_DEFAULT_FORMAT)
    if source.startswith(RANDOM):
        record, config = get_shape(source.removeprefix(RANDOM))
        packed = asked or default
        tensors = tuple(
            _tensor(
                name, shape, packed if is_quantizable(name, shape, packed) else get_format("f32")
            )
            for name, shape in record.parameters(config).items()
        )
        return ModelSummary(source, "random", 0, record.model_type, config, tensors)
    with open_source(source) as opened:
        names = opened.names()
        if opened.kind == "gguf":
            record = get_gguf_model(str(opened.config.get("general.architecture")))
            config = record.config_from_gguf(opened.config, names)
        else:
            record = get_model(str(opened.config.get("model_type")))
            config = record.config_from_hf(opened.config)
        compiled = quantized(opened, asked or (default if is_float(opened) else None))
        tensors = tuple(
            _tensor(name, opened.shape(name), compiled.format(name), opened.format(name))
            for name in names
        )
    size = _file_bytes(Path(source))
    return ModelSummary(source, opened.kind, size, record.model_type, config, tensors)


def _tensor(
    name: str, shape: tuple[int, ...], packed: QuantFormat, stored: QuantFormat | None = None
) -> Tensor:
    nbytes = math.ceil(math.prod(shape) * packed.bytes_per_weight())
    return Tensor(name, shape, (stored or packed).name, packed.name, nbytes)


def _file_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(p.stat().st_size for p in path.iterdir() if p.suffix in (".safetensors", ".gguf"))


def check_memory(summary: ModelSummary, context: int | None, *, name: str) -> None:
    """OutOfMemoryError when the model, its cache and its work space are more than what is free."""
    from pumice.runtime.memory import available_bytes

    tokens = summary.context(context)
    cache = tokens * summary.cache_bytes_per_token
    work = summary.work_bytes()
    need = summary.weight_bytes + cache + work
    free = available_bytes()
    if free is not None and need > free:
        raise OutOfMemoryError(
            f"{name} needs about {need / 1e9:.2f} GB (weights {summary.weight_bytes / 1e9:.2f}, "
            f"cache of {tokens:,} tokens {cache / 1e9:.2f}, work {work / 1e9:.2f}); "
            f"{free / 1e9:.2f} GB are free",
            hint="Choose a shorter context (--context) or a smaller model.",
        )


def check_disk(summary: ModelSummary, cache_dir: Path) -> None:
    """StorageError when the artifact would not fit the disk of the cache."""
    from pumice.files import make_directory, require_space

    make_directory(cache_dir)
    require_space(cache_dir, summary.weight_bytes + (32 << 20))


def as_dict(summary: ModelSummary, context: int | None) -> dict[str, Any]:
    """For `pumice inspect --json`."""
    tokens = summary.context(context)
    return {
        "path": summary.path,
        "kind": summary.kind,
        "file_bytes": summary.file_bytes,
        "architecture": summary.architecture,
        "parameters": summary.parameters,
        "config": summary.config.as_dict(),
        "types": [
            {"format": f, "tensors": n, "parameters": p, "packed_bytes": b}
            for f, n, p, b in summary.types()
        ],
        "memory": {
            "weights": summary.weight_bytes,
            "cache_per_token": summary.cache_bytes_per_token,
            "context": tokens,
            "cache": tokens * summary.cache_bytes_per_token,
            "work": summary.work_bytes(),
        },
    }
