"""TINY random models of every architecture, as Hugging Face writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pumice.models import get_model


def tiny_settings(model_type: str, **overrides: Any) -> dict[str, Any]:
    """config.json of the architecture's TINY model, with `overrides` on top."""
    c = get_model(model_type).tiny
    settings: dict[str, Any] = {
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "max_position_embeddings": c.context_length,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_theta": c.rope.theta,
        "tie_word_embeddings": c.tie_word_embeddings,
        "hidden_act": "silu",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if model_type != "qwen2":
        settings["head_dim"] = c.head_dim
    if model_type == "mistral":
        settings["sliding_window"] = c.window
    return settings | overrides


def make_tiny(model_type: str, path: Path, seed: int = 0, **overrides: Any) -> Path:
    """Writes config.json and model.safetensors (float32) of a random TINY model; returns `path`.

    Norm weights and biases are random too: a forward that leaves one out is found out. Weights are
    larger than at the start of a training, so that logits differ clearly.
    """
    model = make_model(model_type, seed, **overrides)
    model.save_pretrained(path, safe_serialization=True)
    return path


def make_model(model_type: str, seed: int = 0, **overrides: Any) -> Any:
    """The same as a Transformers model in evaluation mode."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **tiny_settings(model_type, **overrides))
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.2 * noise)
            elif parameter.ndim == 1:
                parameter.copy_(0.3 * noise)
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.copy_(0.2 * noise)
            else:
                parameter.copy_(noise * 1.3 / parameter.shape[1] ** 0.5)
    return model
