"""GGUF metadata → the settings that our architectures share.

Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, under the architecture's name.
What a file's tensors say (tied embeddings, biases) is read from their names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pumice.errors import ModelFileError, UnsupportedError
from pumice.models.config import ModelConfig
from pumice.models.rope import RopeConfig, yarn_mscale
from pumice.models.settings import Settings

_HARMLESS = frozenset({"tensor_data_layout", "rope.scaling.finetuned", "interleave_moe_layer_step"})


def open_metadata(metadata: Mapping[str, Any], architecture: str) -> Settings:
    """Checks the architecture and refuses mixtures of experts."""
    found = metadata.get("general.architecture")
    if found != architecture:
        raise ModelFileError(
            f"GGUF metadata: general.architecture is {found!r:.80}; expected: {architecture!r}"
        )
    s = Settings(metadata, "GGUF metadata", f"{architecture}.")
    for name in ("expert_count", "expert_used_count", "leading_dense_block_count", "pooling_type"):
        s.only(name, 0)
    s.only("use_parallel_residual", False)
    s.only("attention.causal", True)
    return s


def read_decoder(s: Settings, names: Collection[str], model_type: str, **given: Any) -> ModelConfig:
    """Takes the shared keys, refuses unknown ones, and makes the config with `given` on top."""
    hidden, heads = s.integer("embedding_length"), _uniform(s, "attention.head_count")
    kv_heads = _uniform(s, "attention.head_count_kv", heads)
    if s.take("attention.key_length") is None and (heads < 1 or hidden % heads):
        raise ModelFileError(
            f"GGUF metadata: embedding_length {hidden} is no multiple of attention.head_count "
            f"{heads}, and no attention.key_length is given"
        )
    head_dim = s.integer("attention.key_length", hidden // max(heads, 1))
    s.only("attention.value_length", head_dim)
    s.only("rope.dimension_count", head_dim)
    context = s.integer("context_length")
    rope = _read_rope(s, head_dim, context)
    if rope.kind == "yarn":
        assert rope.original_context is not None
        context = max(context, int(rope.original_context * rope.factor))
    vocabulary = s.take("vocab_size")
    if vocabulary is None:
        tokens = s.data.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, Collection) or not tokens:
            raise ModelFileError(
                "GGUF metadata: neither the vocabulary's size nor tokenizer.ggml.tokens is there"
            )
        vocabulary = len(tokens)
    else:
        vocabulary = s.integer("vocab_size")
    fields: dict[str, Any] = {
        "intermediate_size": _uniform(s, "feed_forward_length"),
        "num_hidden_layers": s.layers("block_count"),
        "rms_norm_eps": s.number("attention.layer_norm_rms_epsilon"),
    }
    s.finish(_HARMLESS)
    return ModelConfig(
        model_type=model_type,
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        context_length=context,
        rope=rope,
        tie_word_embeddings="output.weight" not in names,
        **fields,
        **given,
    )


def _uniform(s: Settings, name: str, default: int | None = None) -> int:
    """A whole number, or a list with the same one for every layer."""
    value = s.take(name)
    if not isinstance(value, list | tuple):
        return s.integer(name, default)
    if len(set(value)) != 1 or not isinstance(value[0], int):
        raise UnsupportedError(
            f"GGUF metadata: {s.prefix}{name} differs from layer to layer ({value!r:.80}), which "
            "is not supported"
        )
    return int(value[0])


def _read_rope(s: Settings, head_dim: int, context: int) -> RopeConfig:
    """llama.cpp's rotary settings.

    Llama 3's scaling is not among them: it comes as the tensor rope_freqs.weight.
    """
    theta = s.number("rope.freq_base", 10000.0)
    kind = s.take("rope.scaling.type", "none")
    factor = s.number("rope.scaling.factor", 1.0)
    linear = s.number("rope.scale_linear", 1.0)
    original = s.integer("rope.scaling.original_context_length", context)
    for name, allowed in (("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)):
        s.only(f"rope.scaling.{name}", allowed)
    sharpened = s.number("rope.scaling.attn_factor", 1.0)
    sharpened *= s.number("rope.scaling.yarn_attn_factor", 1.0)
    beta_fast = s.number("rope.scaling.yarn_beta_fast", 32.0)
    beta_slow = s.number("rope.scaling.yarn_beta_slow", 1.0)
    if kind == "yarn":
        return RopeConfig(
            theta, head_dim, "yarn", factor, original, beta_fast=beta_fast, beta_slow=beta_slow,
            attention_factor=sharpened * yarn_mscale(factor),
        )  # fmt: skip
    if sharpened != 1.0:
        raise UnsupportedError(
            f"GGUF metadata: an attention factor of {sharpened} is supported with yarn scaling "
            f"only, not with {kind!r:.40}"
        )
    if kind == "linear" or (kind == "none" and linear != 1.0):
        return RopeConfig(theta, head_dim, "linear", factor if kind == "linear" else linear)
    if kind != "none":
        raise UnsupportedError(
            f"GGUF metadata: rope scaling {kind!r:.40} is not supported; known: none, linear, yarn"
        )
    return RopeConfig(theta, head_dim)
