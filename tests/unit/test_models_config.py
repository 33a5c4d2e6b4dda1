"""Configs from config.json and GGUF metadata: what is read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from pumice.errors import ModelFileError, UnsupportedError, UsageError
from pumice.models import MODELS, get_gguf_model, get_model, get_shape, shape_names
from pumice.models.rope import RopeConfig
from reference.tiny import tiny_settings

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SCALINGS: dict[str, dict[str, Any] | None] = {
    "default": None,
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": LLAMA3,
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn-ends": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
        "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False, "attention_factor": 1.5,
    },
    "yarn-mscale": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64,
        "mscale": 1.0, "mscale_all_dim": 0.7,
    },
}  # fmt: skip


@pytest.mark.parametrize("model_type", MODELS)
def test_tiny_config_survives_transformers(model_type: str, tmp_path: Path) -> None:
    """What Transformers writes of TINY's settings is read as TINY."""
    AutoConfig.for_model(model_type, **tiny_settings(model_type)).save_pretrained(tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    assert get_model(model_type).config_from_hf(data) == get_model(model_type).tiny


@pytest.mark.parametrize("base", [10000.0, 500000.0, 1000000.0])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_rotary_frequencies_are_those_of_transformers(scaling: str, base: float) -> None:
    settings = tiny_settings("llama", rope_theta=base, head_dim=128)
    settings["rope_scaling"] = SCALINGS[scaling] and dict(SCALINGS[scaling])
    ours = get_model("llama").config_from_hf(settings).rope
    config = AutoConfig.for_model("llama", **settings)
    if scaling == "default":
        exponent = torch.arange(0, 128, 2, dtype=torch.float32) / 128
        theirs, factor = 1.0 / base**exponent, 1.0
    else:
        theirs, factor = ROPE_INIT_FUNCTIONS[ours.kind](config, "cpu")
    assert ours.inv_freq().dtype == np.float32
    np.testing.assert_allclose(
        ours.inv_freq(), theirs.numpy(), rtol=1e-6
    )  # a few units in the last place
    assert ours.mscale == pytest.approx(factor, rel=1e-12)


def test_old_and_new_forms_of_rope_settings_agree() -> None:
    record = get_model("llama")
    old = tiny_settings("llama", rope_theta=5e5, rope_scaling=LLAMA3)
    new = tiny_settings("llama", rope_parameters={**LLAMA3, "rope_theta": 5e5})
    del new["rope_theta"]
    legacy = tiny_settings("llama", rope_scaling={"type": "linear", "factor": 2})
    assert record.config_from_hf(old) == record.config_from_hf(new)
    assert record.config_from_hf(legacy).rope == RopeConfig(10000.0, 32, "linear", 2.0)


def test_yarn_extends_the_context() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    config = get_model("llama").config_from_hf(tiny_settings("llama", rope_scaling=yarn))
    assert config.context_length == 1024


def test_windows_of_layers() -> None:
    window = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2}
    read = get_model("qwen2").config_from_hf
    assert read(tiny_settings("qwen2", **window)).windows == (None, None, 9)
    unused = read(tiny_settings("qwen2", **{**window, "use_sliding_window": False}))
    assert unused.windows == (None,) * 3 and unused.window is None
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert read(tiny_settings("qwen2", **window, layer_types=kinds)).windows == (9, None, 9)
    mistral = tiny_settings("mistral")
    assert get_model("mistral").config_from_hf(mistral).window == 37
    del mistral["sliding_window"]  # Transformers' default
    assert get_model("mistral").config_from_hf(mistral).window == 4096


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
    ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "'longrope'"),
    ("llama", {"rope_scaling": {"type": "default", "mrope_section": [1, 2]}}, "mrope_section"),
    ("llama", {"rope_interleaved": True}, "rope_interleaved is True"),
    ("llama", {"residual_multiplier": 0.22}, "residual_multiplier = 0.22"),
    ("llama", {"use_gating": False}, "use_gating = False"),
    ("llama", {"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ("llama", {"sliding_window": 128}, "sliding_window = 128"),
    ("qwen2", {"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
    ("qwen2", {"use_mrope": True}, "use_mrope is True"),
    ("mistral", {"layer_types": ["full_attention"] * 2}, "layer_types"),
]


@pytest.mark.parametrize(("model_type", "change", "said"), REFUSED, ids=[r[2] for r in REFUSED])
def test_unsupported_settings_are_named(model_type: str, change: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        get_model(model_type).config_from_hf(tiny_settings(model_type, **change))
    assert said in str(caught.value)


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_hidden_layers": 2**62}, f"num_hidden_layers is {2**62}"),
    ({"vocab_size": float("inf")}, "vocab_size is inf"),
    ({"vocab_size": float("nan")}, "vocab_size is nan"),
    ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
    ({"rope_theta": float("inf")}, "rope_theta is inf"),
    ({"num_key_value_heads": 2}, "3 query heads cannot share 2"),
    ({"hidden_size": "96"}, "hidden_size is '96'"),
    ({"vocab_size": None}, "vocab_size is missing"),
    ({"head_dim": None, "hidden_size": 97}, "97 is no multiple"),
    ({"rms_norm_eps": -1e-5}, "rms_norm_eps is -1e-05"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
    ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
    ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor is 0"),
    ({"rope_theta": 0}, "base is 0"),
]


@pytest.mark.parametrize(("change", "said"), IMPOSSIBLE, ids=[r[1] for r in IMPOSSIBLE])
def test_impossible_settings_are_named(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        get_model("llama").config_from_hf(tiny_settings("llama", **change))
    assert said in str(caught.value)


def test_unknown_architectures_list_the_known() -> None:
    with pytest.raises(UnsupportedError, match=r"'gpt_j'.*llama, mistral, qwen2, qwen3"):
        get_model("gpt_j")
    with pytest.raises(UnsupportedError, match=r"'mamba'.*llama, qwen2, qwen3"):
        get_gguf_model("mamba")
    with pytest.raises(UsageError, match=r"'llama-9'.*llama-2-7b"):
        get_shape("llama-9")


def test_published_shapes_have_the_published_sizes() -> None:
    millions = {
        "llama-2-7b": 6738.4, "llama-2-13b": 13015.9, "llama-3-8b": 8030.3, "llama-3.2-1b": 1235.8,
        "qwen2.5-0.5b": 494.0, "qwen2.5-7b": 7615.6, "qwen3-0.6b": 596.0, "qwen3-8b": 8190.7,
        "mistral-7b": 7248.0, "smollm2-135m": 134.5,
    }  # fmt: skip
    for name in shape_names():
        record, config = get_shape(name)
        count = sum(int(np.prod(shape)) for shape in record.parameters(config).values())
        assert name not in millions or count / 1e6 == pytest.approx(millions[name], abs=0.1)
    assert millions.keys() <= set(shape_names())


# -- GGUF --------------------------------------------------------------------------------------

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 96,
    "llama.feed_forward_length": 160,
    "llama.attention.head_count": 3,
    "llama.attention.head_count_kv": 1,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.dimension_count": 32,
    "tokenizer.ggml.tokens": ["a"] * 77,
    "tokenizer.ggml.unheard_of": 5,
}


def read_gguf(*names: str, **changes: Any) -> Any:
    changes = {f"llama.{k.replace('__', '.')}": v for k, v in changes.items()}
    return get_gguf_model("llama").config_from_gguf(METADATA | changes, names)


def test_gguf_metadata() -> None:
    config = read_gguf("output.weight", "blk.0.attn_q.bias")
    assert (config.vocab_size, config.head_dim, config.context_length) == (77, 32, 512)
    assert (config.num_hidden_layers, config.num_key_value_heads) == (2, 1)
    assert config.qkv_bias and not config.output_bias and not config.tie_word_embeddings
    assert read_gguf().tie_word_embeddings
    assert read_gguf(attention__key_length=48, attention__value_length=48,
                     rope__dimension_count=48).head_dim == 48  # fmt: skip
    assert read_gguf(attention__head_count_kv=[3, 3]).num_key_value_heads == 3
    assert read_gguf(attention__sliding_window=64).windows == (64, 64)
    assert read_gguf(rope__scaling__type="none", rope__freq_base=5e5).rope == RopeConfig(5e5, 32)
    yarn = read_gguf(
        rope__scaling__type="yarn", rope__scaling__factor=4.0,
        rope__scaling__original_context_length=128, rope__scaling__yarn_attn_factor=2.0,
    ).rope  # fmt: skip
    assert (yarn.kind, yarn.original_context) == ("yarn", 128)
    assert yarn.mscale == pytest.approx(2 * (1 + 0.1 * np.log(4)))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"expert_count": 8}, "expert_count is 8"),
        ({"rope__dimension_count": 16}, "dimension_count is 16"),
        ({"attention__value_length": 64}, "value_length is 64"),
        ({"attention__head_count_kv": [1, 3]}, "differs from layer to layer"),
        ({"rope__scaling__type": "longrope"}, "'longrope'"),
        ({"rope__scaling__yarn_ext_factor": 0.5}, "yarn_ext_factor is 0.5"),
        ({"rope__scaling__attn_factor": 1.2}, "attention factor of 1.2"),
        ({"logit_scale": 0.125}, "logit_scale = 0.125"),
        ({"attention__causal": False}, "causal is False"),
        ({"attention__key_length": 48}, "dimension_count is 32; supported: 48"),
    ],
)
def test_unsupported_metadata_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        read_gguf(**changes)
    assert said in str(caught.value)


def test_incomplete_metadata_is_named() -> None:
    data = {k: v for k, v in METADATA.items() if k != "llama.block_count"}
    with pytest.raises(ModelFileError, match=r"llama.block_count is missing"):
        get_gguf_model("llama").config_from_gguf(data, ())
    data = {k: v for k, v in METADATA.items() if k != "tokenizer.ggml.tokens"}
    with pytest.raises(ModelFileError, match="vocabulary"):
        get_gguf_model("llama").config_from_gguf(data, ())
