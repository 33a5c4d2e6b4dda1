"""A model record: everything that the rest of Pumice asks of an architecture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.errors import UsageError
from pumice.models.config import ModelConfig
from pumice.models.parameters import INV_FREQ, list_parameters

ROPE_FACTORS = "rope_freqs.weight"
SOURCES = ("hf", "gguf")


@dataclass(frozen=True)
class SourceRule:
    """How a parameter is made of a file's tensor.

    unpermute_heads: llama.cpp's converter reorders the rows of each head of a Llama's query and key
        projections, so that rotation works on neighbouring pairs; so many heads are put back into
        halves. 0: taken as it is.
    """

    name: str
    unpermute_heads: int = 0


@dataclass(frozen=True)
class ModelRecord:
    """One architecture.

    model_type: Hugging Face's name.
    gguf_architecture: the value of `general.architecture`; None where another record reads them.
    permuted: GGUF files hold query and key rows in pairs.
    shapes: names of published shapes → the settings of their config.json.
    extras: per source, regular expressions of tensor names that a file may hold and nobody reads.
    """

    model_type: str
    read_hf: Callable[[Mapping[str, Any]], ModelConfig]
    tiny: ModelConfig
    read_gguf: Callable[[Mapping[str, Any], Collection[str]], ModelConfig] | None = None
    gguf_architecture: str | None = None
    permuted: bool = False
    shapes: Mapping[str, Mapping[str, Any]] | None = None
    extras: Mapping[str, tuple[str, ...]] | None = None

    def config_from_hf(self, data: Mapping[str, Any]) -> ModelConfig:
        """The config of a checkpoint's config.json.

        Raises UnsupportedError for settings that may change the mathematics and are not known,
        ModelFileError for values that cannot be.
        """
        return self.read_hf(data)

    def config_from_gguf(self, metadata: Mapping[str, Any], names: Collection[str]) -> ModelConfig:
        """The config of a GGUF file: its metadata, and its tensors' names for ties and biases."""
        if self.read_gguf is None:
            raise UsageError(f"{self.model_type} models have no GGUF architecture of their own")
        return self.read_gguf(metadata, names)

    def trace(self, config: ModelConfig, *, block_size: int = 32) -> Any:
        """The IRModule with "decode", "extend" and "embed"; see `models/trace.py`."""
        from pumice.models.trace import trace

        return trace(config, block_size=block_size)

    def parameters(self, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Parameter → logical shape, constants included."""
        return {p.name: p.shape for p in list_parameters(config)}

    def weight_map(self, config: ModelConfig, source: str) -> dict[str, SourceRule]:
        """Parameter → where it comes from in a "hf" or "gguf" file; constants are left out."""
        if source not in SOURCES:
            raise UsageError(f"source is {source!r}; allowed: {', '.join(SOURCES)}")
        rules = {}
        for p in list_parameters(config):
            if p.gguf is None:
                continue
            if source == "hf":
                rules[p.name] = SourceRule(p.name)
            else:
                rules[p.name] = SourceRule(p.gguf, p.heads if self.permuted else 0)
        return rules

    def constants(
        self, config: ModelConfig, rope_factors: np.ndarray | None = None
    ) -> dict[str, np.ndarray]:
        """Parameters that are computed: the rotary frequencies, float32[rotary width/2].

        rope_factors: a GGUF file's `rope_freqs.weight`, which divides the frequencies: such a
        file states Llama 3.1's scaling that way.
        """
        inv_freq = config.rope.inv_freq()
        if rope_factors is not None:
            inv_freq = inv_freq / rope_factors.astype(np.float32).reshape(inv_freq.shape)
        return {INV_FREQ: inv_freq.astype(np.float32)}

    def known_extra(self, source: str) -> tuple[str, ...]:
        """Regular expressions of tensor names that a file may hold without being read."""
        common = {
            "hf": (r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
            "gguf": (r"rope_freqs\.weight", r"blk\.\d+\.attn[._]rot_embd(\.weight)?"),
        }
        return (*common[source], *(self.extras or {}).get(source, ()))


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads, d/2, 2] in pairs → [heads, 2, d/2] in halves, along the first axis."""
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    halves: np.ndarray = pairs.swapaxes(1, 2).reshape(rows.shape)
    return halves
