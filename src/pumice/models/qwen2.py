"""Qwen2 and Qwen2.5 (arXiv:2407.10671, arXiv:2412.15115).

Biases on queries, keys and values; sliding windows in the upper layers where they are used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pumice.models import read_gguf, read_hf
from pumice.models.config import ModelConfig
from pumice.models.record import ModelRecord
from pumice.models.rope import RopeConfig

TINY = ModelConfig(
    model_type="qwen2",
    vocab_size=320,
    hidden_size=96,
    intermediate_size=128,
    num_hidden_layers=3,
    num_attention_heads=6,
    num_key_value_heads=3,
    head_dim=16,
    context_length=256,
    rms_norm_eps=1e-6,
    rope=RopeConfig(1000000.0, 16),
    tie_word_embeddings=True,
    qkv_bias=True,
)


def config_from_hf(data: Mapping[str, Any]) -> ModelConfig:
    s = read_hf.open_settings(data)
    s.only("use_mrope", False)
    return read_hf.read_decoder(
        s, "qwen2", default_context=32768, qkv_bias=True, windows=read_hf.read_windows(s)
    )


def config_from_gguf(metadata: Mapping[str, Any], names: Collection[str]) -> ModelConfig:
    s = read_gguf.open_metadata(metadata, "qwen2")
    s.only("attention.sliding_window", 0)
    return read_gguf.read_decoder(s, names, "qwen2", qkv_bias=True)


def _qwen(hidden: int, inner: int, layers: int, heads: int, kv: int, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        **more,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "qwen2.5-0.5b": _qwen(896, 4864, 24, 14, 2, tie_word_embeddings=True),
    "qwen2.5-1.5b": _qwen(1536, 8960, 28, 12, 2, tie_word_embeddings=True),
    "qwen2.5-3b": _qwen(2048, 11008, 36, 16, 2, tie_word_embeddings=True),
    "qwen2.5-7b": _qwen(3584, 18944, 28, 28, 4, vocab_size=152064),
    "qwen2.5-14b": _qwen(5120, 13824, 48, 40, 8, vocab_size=152064),
}

RECORD = ModelRecord(
    model_type="qwen2",
    read_hf=config_from_hf,
    tiny=TINY,
    read_gguf=config_from_gguf,
    gguf_architecture="qwen2",
    shapes=SHAPES,
)
