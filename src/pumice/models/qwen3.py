"""Qwen3, dense (arXiv:2505.09388).

An RMS norm of each query and key head, a head width of its own, no biases by default.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pumice.models import read_gguf, read_hf
from pumice.models.config import ModelConfig
from pumice.models.record import ModelRecord
from pumice.models.rope import RopeConfig

TINY = ModelConfig(
    model_type="qwen3",
    vocab_size=320,
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=32,
    context_length=256,
    rms_norm_eps=1e-6,
    rope=RopeConfig(1000000.0, 32),
    tie_word_embeddings=True,
    qk_norm=True,
)


def config_from_hf(data: Mapping[str, Any]) -> ModelConfig:
    s = read_hf.open_settings(data)
    bias = s.flag("attention_bias")
    return read_hf.read_decoder(
        s,
        "qwen3",
        default_context=32768,
        head_dim=s.integer("head_dim", 128),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        windows=read_hf.read_windows(s),
    )


def config_from_gguf(metadata: Mapping[str, Any], names: Collection[str]) -> ModelConfig:
    s = read_gguf.open_metadata(metadata, "qwen3")
    s.only("attention.sliding_window", 0)
    return read_gguf.read_decoder(s, names, "qwen3", qk_norm=True)


def _qwen(hidden: int, inner: int, layers: int, heads: int, kv: int, tied: bool) -> dict[str, Any]:
    return {
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": tied,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": _qwen(1024, 3072, 28, 16, 8, True),
    "qwen3-1.7b": _qwen(2048, 6144, 28, 16, 8, True),
    "qwen3-4b": _qwen(2560, 9728, 36, 32, 8, True),
    "qwen3-8b": _qwen(4096, 12288, 36, 32, 8, False),
    "qwen3-14b": _qwen(5120, 17408, 40, 40, 8, False),
}

RECORD = ModelRecord(
    model_type="qwen3",
    read_hf=config_from_hf,
    tiny=TINY,
    read_gguf=config_from_gguf,
    gguf_architecture="qwen3",
    shapes=SHAPES,
)
