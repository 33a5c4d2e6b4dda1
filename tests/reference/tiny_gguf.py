"""A TINY model as a GGUF file, in the form that llama.cpp's converter gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from reference.files import GGUF_NAMES, frequencies
from reference.tiny import make_model, tiny_settings

_HF_NAMES = {hf: ggml for ggml, hf in GGUF_NAMES.items()}


def make_tiny_gguf(
    model_type: str, path: Path, seed: int = 0, quantization: str = "F32", **overrides: Any
) -> Path:
    """Writes `make_tiny`'s model of the same arguments as GGUF; returns `path`.

    quantization: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1 or Q8_0, of matrices; vectors stay float32.
    Mistral is written as architecture "llama"; Llama's queries and keys are permuted; Llama 3's
    rope scaling becomes the tensor rope_freqs.weight. The vocabulary is a list of numbers.
    """
    c = tiny_settings(model_type, **overrides)
    weights = {
        k: v.numpy() for k, v in make_model(model_type, seed, **overrides).state_dict().items()
    }
    arch = {"mistral": "llama"}.get(model_type, model_type)
    kind = gguf.GGMLQuantizationType[quantization]
    heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
    writer = gguf.GGUFWriter(path, arch)
    _settings(writer, c, arch)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([str(i) for i in range(c["vocab_size"])])
    for name, value in weights.items():
        if name == "lm_head.weight" and c["tie_word_embeddings"]:
            continue
        if arch == "llama" and ".q_proj." in name:
            value = permute(value, heads)
        if arch == "llama" and ".k_proj." in name:
            value = permute(value, kv_heads)
        wanted = kind if value.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(value.astype(np.float32), wanted)
        writer.add_tensor(_gguf_name(name), data, raw_dtype=wanted)
    scaling = c.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        dim, theta, context = _head_dim(c), c["rope_theta"], c["max_position_embeddings"]
        plain, scaled = (frequencies(dim, theta, s, context)[0] for s in (None, scaling))
        writer.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves to pairs, as convert_hf_to_gguf.py does for Llama."""
    half = rows.shape[0] // heads // 2
    order = np.arange(rows.shape[0]).reshape(heads, 2, half).transpose(0, 2, 1).reshape(-1)
    return rows[order]


def _head_dim(c: dict[str, Any]) -> int:
    return int(c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"])


def _settings(writer: Any, c: dict[str, Any], arch: str) -> None:
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(_head_dim(c))
    writer.add_value_length(_head_dim(c))
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    if arch == "llama":
        writer.add_rope_dimension_count(_head_dim(c))
    if c.get("sliding_window"):
        writer.add_sliding_window(c["sliding_window"])
    scaling = c.get("rope_scaling") or {}
    kind = scaling.get("rope_type")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(scaling["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in _HF_NAMES:
        return f"{_HF_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_HF_NAMES[part]}.{kind}"
