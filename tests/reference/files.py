"""Models for the NumPy forward, read with the formats' own libraries.

GGUF's permuted queries and keys are rotated in pairs, where Pumice reorders the weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reference.forward import ReferenceModel, Settings


def frequencies(
    dim: int, theta: float, scaling: Mapping[str, Any] | None, context: int
) -> tuple[np.ndarray, float]:
    """(inv_freq float32[dim/2], factor of cosine and sine) under a config.json's rope scaling.

    From the papers' formulas, in float64.
    """
    i = np.arange(dim // 2)
    base = theta ** (-2.0 * i / dim)
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor, mscale = scaling.get("factor", 1.0), 1.0
    original = scaling.get("original_max_position_embeddings", context)
    if kind == "linear":
        base = base / factor
    elif kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = original * base / (2 * math.pi)  # rotations over the original context
        blend = np.clip((turns - low) / (high - low), 0, 1)
        base = base * (blend + (1 - blend) / factor)
    elif kind == "yarn":
        fast, slow = scaling.get("beta_fast", 32), scaling.get("beta_slow", 1)
        low, high = (
            dim * math.log(original / (r * 2 * math.pi)) / (2 * math.log(theta))
            for r in (fast, slow)
        )
        if scaling.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        blend = 1 - np.clip((i - low) / max(high - low, 0.001), 0, 1)
        base = base * (blend + (1 - blend) / factor)
        mscale = scaling.get("attention_factor") or 0.1 * math.log(factor) + 1
    elif kind != "default":
        raise ValueError(kind)
    return base.astype(np.float32), mscale


def read_checkpoint(directory: Path, dtype: Any = np.float32) -> ReferenceModel:
    """A model directory of Hugging Face's: config.json and *.safetensors in float32."""
    from safetensors.numpy import load_file

    weights: dict[str, np.ndarray] = {}
    for path in sorted(directory.glob("*.safetensors")):
        weights |= load_file(path)
    return from_config(json.loads((directory / "config.json").read_text()), weights, dtype)


def from_config(
    c: Mapping[str, Any], weights: Mapping[str, np.ndarray], dtype: Any = np.float32
) -> ReferenceModel:
    """A model from the content of its config.json."""
    heads, layers = c["num_attention_heads"], c["num_hidden_layers"]
    dim = c.get("head_dim") or c["hidden_size"] // heads
    scaling = c.get("rope_scaling") or c.get("rope_parameters") or {}
    theta = scaling.get("rope_theta") or c.get("rope_theta") or 10000.0
    inv_freq, mscale = frequencies(dim, theta, scaling, c["max_position_embeddings"])
    window = c.get("sliding_window")
    windows = [window] * layers
    if c["model_type"] in ("qwen2", "qwen3"):
        first = c.get("max_window_layers", 28)
        used = c.get("use_sliding_window", False)
        windows = [window if used and i >= first else None for i in range(layers)]
    settings = Settings(
        layers, heads, c.get("num_key_value_heads") or heads, dim, c["rms_norm_eps"],
        inv_freq, mscale, windows=tuple(windows),
    )  # fmt: skip
    return ReferenceModel(settings, weights, dtype)


GGUF_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "token_embd": "model.embed_tokens", "output_norm": "model.norm",
    "output": "lm_head",
}  # fmt: skip


def read_gguf(path: Path, dtype: Any = np.float32, pairs: bool | None = None) -> ReferenceModel:
    """A GGUF file, dequantized by the gguf library. pairs: None for what the architecture has."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    reader = GGUFReader(path)
    meta = {key: f.contents() for key, f in reader.fields.items() if "tokenizer" not in key}
    arch = meta["general.architecture"]

    def get(name: str, default: Any = None) -> Any:
        return meta.get(f"{arch}.{name}", default)

    weights, factors = {}, 1.0
    for tensor in reader.tensors:
        value = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name == "rope_freqs.weight":
            factors = value
            continue
        stem, kind = tensor.name.rsplit(".", 1)
        if stem.startswith("blk."):
            _, layer, part = stem.split(".")
            weights[f"model.layers.{layer}.{GGUF_NAMES[part]}.{kind}"] = value
        else:
            weights[f"{GGUF_NAMES[stem]}.{kind}"] = value
    heads = get("attention.head_count")
    dim = get("attention.key_length") or get("embedding_length") // heads
    kind = get("rope.scaling.type", "none")
    scaling = {
        "type": "default" if kind == "none" else kind,
        "factor": get("rope.scaling.factor", 1.0),
        "original_max_position_embeddings": get("rope.scaling.original_context_length"),
    }
    inv_freq, mscale = frequencies(
        dim, get("rope.freq_base", 10000.0), scaling, get("context_length")
    )
    settings = Settings(
        get("block_count"), heads, get("attention.head_count_kv", heads), dim,
        get("attention.layer_norm_rms_epsilon"), inv_freq / factors, mscale,
        pairs=arch == "llama" if pairs is None else pairs,
        windows=(get("attention.sliding_window") or None,) * get("block_count"),
    )  # fmt: skip
    return ReferenceModel(settings, weights, dtype)
