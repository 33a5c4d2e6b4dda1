"""Model architectures: config parsers, graphs, weight names.

`MODELS` is the registry; nothing is imported before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from pumice.errors import UnsupportedError, UsageError

if TYPE_CHECKING:
    from pumice.models.config import ModelConfig
    from pumice.models.record import ModelRecord

#: model_type → "module:attribute" of its record.
MODELS: dict[str, str] = {
    "llama": "pumice.models.llama:RECORD",
    "mistral": "pumice.models.mistral:RECORD",
    "qwen2": "pumice.models.qwen2:RECORD",
    "qwen3": "pumice.models.qwen3:RECORD",
}


def get_model(model_type: str) -> ModelRecord:
    """The record of a Hugging Face model_type; UnsupportedError lists the known ones."""
    if model_type not in MODELS:
        raise UnsupportedError(
            f"architecture {model_type!r} is not supported; known: {', '.join(MODELS)}"
        )
    module, _, attribute = MODELS[model_type].partition(":")
    record: ModelRecord = getattr(importlib.import_module(module), attribute)
    return record


def get_gguf_model(architecture: str) -> ModelRecord:
    """The record that reads GGUF files of this `general.architecture`.

    UnsupportedError lists the known ones.
    """
    records = [get_model(name) for name in MODELS]
    for record in records:
        if record.gguf_architecture == architecture:
            return record
    known = ", ".join(r.gguf_architecture for r in records if r.gguf_architecture)
    raise UnsupportedError(f"GGUF architecture {architecture!r} is not supported; known: {known}")


def shape_names() -> tuple[str, ...]:
    """Names of the published shapes that `get_shape` knows."""
    return tuple(name for m in MODELS for name in (get_model(m).shapes or {}))


def get_shape(name: str) -> tuple[ModelRecord, ModelConfig]:
    """Record and config of a published model's shape ("llama-2-7b").

    UsageError lists the known ones.
    """
    for model_type in MODELS:
        record = get_model(model_type)
        if name in (record.shapes or {}):
            return record, record.config_from_hf((record.shapes or {})[name])
    raise UsageError(f"shape {name!r} is unknown; known: {', '.join(shape_names())}")


__all__ = ["MODELS", "get_gguf_model", "get_model", "get_shape", "shape_names"]
