"""Mistral 7B (arXiv:2310.06825): Llama's form with a sliding window in every layer.

Its GGUF files say "llama".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.errors import UnsupportedError
from pumice.models import read_hf
from pumice.models.config import ModelConfig
from pumice.models.record import ModelRecord
from pumice.models.rope import RopeConfig

TINY = ModelConfig(
    model_type="mistral",
    vocab_size=320,
    hidden_size=160,
    intermediate_size=224,
    num_hidden_layers=2,
    num_attention_heads=5,
    num_key_value_heads=1,
    head_dim=32,
    context_length=256,
    rms_norm_eps=1e-5,
    rope=RopeConfig(10000.0, 32),
    windows=(37, 37),
)


def config_from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """An absent sliding_window is Transformers' default of 4096; null is none."""
    s = read_hf.open_settings(data)
    layers = s.layers("num_hidden_layers")
    window = s.take("sliding_window", 4096 if "sliding_window" not in data else None)
    if window is not None and "sliding_window" in data:
        window = s.integer("sliding_window")
    kinds = s.take("layer_types")
    expected = "full_attention" if window is None else "sliding_attention"
    if kinds is not None and set(kinds) != {expected}:
        raise UnsupportedError(
            f"config.json: layer_types is {sorted(set(kinds))!r:.80} with sliding_window {window}; "
            f"for a mistral model only {expected!r} in every layer is supported"
        )
    return read_hf.read_decoder(
        s,
        "mistral",
        # Transformers: absent is 8, null is as many as query heads.
        num_key_value_heads=None if "num_key_value_heads" in data else 8,
        default_context=131072,
        windows=(window,) * layers,
    )


def _mistral(vocabulary: int, context: int, theta: float, window: int | None) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": theta,
        "sliding_window": window,
    }


SHAPES: dict[str, dict[str, Any]] = {
    "mistral-7b": _mistral(32768, 32768, 1000000.0, None),
    "mistral-7b-v0.1": _mistral(32000, 32768, 10000.0, 4096),
}

RECORD = ModelRecord(
    model_type="mistral", read_hf=config_from_hf, tiny=TINY, permuted=True, shapes=SHAPES
)
