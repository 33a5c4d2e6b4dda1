"""Llama 1 to 3.x (arXiv:2302.13971, arXiv:2307.09288, arXiv:2407.21783) and SmolLM2.

Many other checkpoints are of that form. GGUF files of architecture "llama" hold Mistral models too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pumice.models import read_gguf, read_hf
from pumice.models.config import ModelConfig
from pumice.models.record import ModelRecord
from pumice.models.rope import RopeConfig

TINY = ModelConfig(
    model_type="llama",
    vocab_size=320,
    hidden_size=96,
    intermediate_size=160,
    num_hidden_layers=3,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=32,
    context_length=256,
    rms_norm_eps=1e-5,
    rope=RopeConfig(10000.0, 32),
)


def config_from_hf(data: Mapping[str, Any]) -> ModelConfig:
    s = read_hf.open_settings(data)
    bias = s.flag("attention_bias")
    return read_hf.read_decoder(
        s,
        "llama",
        default_context=2048,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=s.flag("mlp_bias"),
    )


def config_from_gguf(metadata: Mapping[str, Any], names: Collection[str]) -> ModelConfig:
    s = read_gguf.open_metadata(metadata, "llama")
    layers = s.layers("block_count")
    window = s.integer("attention.sliding_window", 0) or None
    return read_gguf.read_decoder(
        s,
        names,
        "llama",
        windows=(window,) * layers,
        qkv_bias="blk.0.attn_q.bias" in names,
        output_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_gate.bias" in names,
    )


def _shape(
    vocabulary: int,
    hidden: int,
    inner: int,
    layers: int,
    heads: int,
    kv: int,
    context: int,
    **more: Any,
) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        **more,
    }


def _llama3(factor: float) -> dict[str, Any]:
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


_L3 = {"rope_theta": 500000.0}
_L32 = {**_L3, "rope_scaling": _llama3(32.0), "tie_word_embeddings": True}
_SMOL = {"rope_theta": 100000.0, "tie_word_embeddings": True}

SHAPES: dict[str, dict[str, Any]] = {
    "llama-2-7b": _shape(32000, 4096, 11008, 32, 32, 32, 4096),
    "llama-2-13b": _shape(32000, 5120, 13824, 40, 40, 40, 4096),
    "llama-2-70b": _shape(32000, 8192, 28672, 80, 64, 8, 4096),
    "llama-3-8b": _shape(128256, 4096, 14336, 32, 32, 8, 8192, **_L3),
    "llama-3.1-8b": _shape(
        128256, 4096, 14336, 32, 32, 8, 131072, **_L3, rope_scaling=_llama3(8.0)
    ),
    "llama-3.2-1b": _shape(128256, 2048, 8192, 16, 32, 8, 131072, head_dim=64, **_L32),
    "llama-3.2-3b": _shape(128256, 3072, 8192, 28, 24, 8, 131072, head_dim=128, **_L32),
    "tinyllama-1.1b": _shape(32000, 2048, 5632, 22, 32, 4, 2048),
    "smollm2-135m": _shape(49152, 576, 1536, 30, 9, 3, 8192, **_SMOL),
    "smollm2-360m": _shape(49152, 960, 2560, 32, 15, 5, 8192, **_SMOL),
    "smollm2-1.7b": _shape(
        49152, 2048, 8192, 24, 32, 32, 8192, rope_theta=130000.0, tie_word_embeddings=True
    ),
}

RECORD = ModelRecord(
    model_type="llama",
    read_hf=config_from_hf,
    tiny=TINY,
    read_gguf=config_from_gguf,
    gguf_architecture="llama",
    permuted=True,
    shapes=SHAPES,
)
