"""config.json of Hugging Face checkpoints → the settings that our architectures share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.errors import ModelFileError, UnsupportedError
from pumice.models.config import ModelConfig
from pumice.models.rope import KINDS, RopeConfig, yarn_mscale
from pumice.models.settings import Settings

#: Keys that do not change what a forward pass computes: of files, training, generation, tools.
HARMLESS = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path",
    "add_cross_attention", "architectures", "attention_dropout", "auto_map", "bad_words_ids",
    "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward",
    "cross_attention_hidden_size", "do_sample", "dtype", "eos_token_id", "experiments",
    "finetuning_task", "hidden_dropout", "id2label", "initializer_range", "is_decoder",
    "is_encoder_decoder", "is_llama_config", "label2id", "length_penalty", "max_length",
    "max_sequence_length", "min_length", "model_name", "model_type", "name_or_path", "num_beams",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores",
    "pad_token_id", "prefix", "pretraining_tp", "problem_type", "quantization",
    "remove_invalid_values",
    "repetition_penalty", "resid_pdrop", "return_dict", "return_dict_in_generate", "sep_token_id",
    "task_specific_params", "temperature", "tie_encoder_decoder", "tokenizer_class", "top_k",
    "top_p", "torch_dtype", "torchscript", "transformers.js_config", "transformers_version",
    "unk_token_id", "unsloth_fixed", "unsloth_version", "use_bfloat16", "use_cache",
})  # fmt: skip

_ROPE_HARMLESS = frozenset({"finetuned"})


def open_settings(data: Mapping[str, Any]) -> Settings:
    """Checks what all architectures agree on; refuses checkpoints quantized by other tools."""
    s = Settings(data, "config.json")
    quantized = s.take("quantization_config")
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, Mapping) else quantized
        raise UnsupportedError(
            f"config.json: the checkpoint is quantized ({method}) in a form that is not read",
            hint="Use the original checkpoint (it is quantized on loading), or a GGUF file.",
        )
    s.only("hidden_act", "silu", "swish")
    # SmolLM2's config states it; pairs would need a permuted checkpoint.
    s.only("rope_interleaved", False)
    s.only("add_cross_attention", False)
    s.only("is_encoder_decoder", False)
    return s


def read_decoder(s: Settings, model_type: str, **given: Any) -> ModelConfig:
    """Takes the shared keys, refuses unknown ones, and makes the config with `given` on top."""
    hidden, heads = s.integer("hidden_size"), s.integer("num_attention_heads")
    kv_heads = given.pop("num_key_value_heads", None) or s.integer("num_key_value_heads", heads)
    head_dim = given.pop("head_dim", None)
    if head_dim is None:
        head_dim = s.take("head_dim") and s.integer("head_dim")
    if head_dim is None:
        if heads < 1 or hidden % heads:
            raise ModelFileError(
                f"config.json: hidden_size {hidden} is no multiple of num_attention_heads {heads}, "
                "and no head_dim is given"
            )
        head_dim = hidden // heads
    context = s.integer("max_position_embeddings", given.pop("default_context", None))
    rope = read_rope(s, head_dim, context)
    if rope.kind == "yarn":
        assert rope.original_context is not None
        context = max(context, int(rope.original_context * rope.factor))
    fields: dict[str, Any] = {
        "vocab_size": s.integer("vocab_size"),
        "intermediate_size": s.integer("intermediate_size"),
        "num_hidden_layers": s.layers("num_hidden_layers"),
        "rms_norm_eps": s.number("rms_norm_eps", 1e-6),
        "tie_word_embeddings": s.flag("tie_word_embeddings"),
    }
    s.finish(HARMLESS)
    return ModelConfig(
        model_type=model_type,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        context_length=context,
        rope=rope,
        **fields,
        **given,
    )


def read_rope(s: Settings, head_dim: int, context: int) -> RopeConfig:
    """`rope_parameters` (Transformers 5), or `rope_theta` and `rope_scaling` (before)."""
    s.only("partial_rotary_factor", 1.0)
    new, old = s.take("rope_parameters"), s.take("rope_scaling")
    theta = s.number("rope_theta", 10000.0)
    scaling = old or new or {}
    if not isinstance(scaling, Mapping):
        raise ModelFileError(
            f"config.json: the rope scaling is {scaling!r:.80}; it must be an object"
        )
    r = Settings(scaling, "config.json, rope scaling")
    kind = str(r.take("rope_type") or "") or str(r.take("type", "default"))
    r.take("type")
    theta = r.number("rope_theta", theta)
    r.only("partial_rotary_factor", 1.0)
    if kind == "dynamic":
        raise UnsupportedError(
            "config.json: rope scaling 'dynamic' is not supported: its frequencies change with the "
            "length of a conversation, which a cache of rotated keys cannot follow",
            hint="Set rope_scaling to null to run the model within its original context.",
        )
    if kind == "default":
        r.finish(_ROPE_HARMLESS)
        return RopeConfig(theta, head_dim)
    original = r.take("original_max_position_embeddings") and r.integer(
        "original_max_position_embeddings"
    )
    if kind == "linear":
        rope = RopeConfig(theta, head_dim, kind, r.number("factor"))
    elif kind == "llama3":
        rope = RopeConfig(
            theta, head_dim, kind, r.number("factor"), original or context,
            low_freq_factor=r.number("low_freq_factor"),
            high_freq_factor=r.number("high_freq_factor"),
        )  # fmt: skip
    elif kind == "yarn":
        rope = _yarn(r, theta, head_dim, original or context, context)
    else:
        raise UnsupportedError(
            f"config.json: rope scaling {kind!r} is not supported; known: {', '.join(KINDS)}"
        )
    r.finish(_ROPE_HARMLESS)
    return rope


def _yarn(r: Settings, theta: float, dim: int, original: int, context: int) -> RopeConfig:
    factor = r.number("factor", context / original)
    attention = r.take("attention_factor")
    mscale, all_dims = r.take("mscale"), r.take("mscale_all_dim")
    if attention is not None:
        attention = r.number("attention_factor")
    elif mscale and all_dims:  # DeepSeek's form: the ratio of two temperatures
        attention = yarn_mscale(factor, float(mscale)) / yarn_mscale(factor, float(all_dims))
    return RopeConfig(
        theta, dim, "yarn", factor, original,
        beta_fast=r.take("beta_fast") or 32.0,
        beta_slow=r.take("beta_slow") or 1.0,
        attention_factor=attention,
        truncate=r.flag("truncate", True),
    )  # fmt: skip


def read_windows(s: Settings) -> tuple[int | None, ...]:
    """Qwen's windows: `use_sliding_window` with `layer_types` or `max_window_layers`."""
    layers = s.layers("num_hidden_layers")
    used, window = s.flag("use_sliding_window"), s.take("sliding_window")
    first = s.integer("max_window_layers", 28)
    kinds = s.take("layer_types")
    window = s.integer("sliding_window") if used and window is not None else None
    if kinds is None:
        return tuple(window if layer >= first else None for layer in range(layers))
    known = ("full_attention", "sliding_attention")
    for kind in kinds:
        if kind not in known:
            raise UnsupportedError(
                f"config.json: layer_types holds {kind!r:.40}; supported: {', '.join(known)}"
            )
        if kind == "sliding_attention" and window is None:
            raise ModelFileError(
                "config.json: layer_types has sliding attention, but no sliding window is in use"
            )
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
