"""Compiled TINY models against Hugging Face Transformers on the same weights."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.e2e.compiled import Compiled, error
from tests.reference.tiny import make_model
from transformers import DynamicCache

YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
    "rope_theta": 10000.0,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}

#: One row of logits: a key or value that lies between two float16 may round the other way than in
#: the reference.
FLIP = 6e-4

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True}),
    ("llama", {"rope_parameters": LLAMA3}),
    ("llama", {"rope_parameters": YARN}),
    ("llama", {"rope_parameters": LINEAR}),
    ("mistral", {"sliding_window": 40}),
    ("qwen2", {}),
    ("qwen3", {}),
]


class _HalfCache(DynamicCache):
    """Keys and values rounded to float16, as the compiled models' cache holds them: all else stays
    float32."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        halves = (x.to(torch.float16).to(torch.float32) for x in (key_states, value_states))
        return super().update(*halves, *args, **kwargs)


def _logits(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        cache = _HalfCache(config=model.config)
        # The argument's name depends on the version of Transformers.
        parameters = inspect.signature(model.forward).parameters
        name = "cache" if "cache" in parameters else "past_key_values"
        return model(torch.tensor([tokens]), **{name: cache}).logits[0].numpy()


def _name(case: tuple[str, dict[str, Any]]) -> str:
    rope = case[1].get("rope_parameters", {}).get("rope_type", "")
    return "-".join(
        filter(None, [case[0], rope, "tied" if "tie_word_embeddings" in case[1] else ""])
    )


@pytest.mark.parametrize("case", MODELS, ids=_name)
def test_float32_logits(case: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """Prefill, then step by step, then a ragged batch; contexts over several blocks, window
    wrap-around."""
    model_type, overrides = case
    model = make_model(model_type, seed=3, **overrides)
    model.save_pretrained(tmp_path / "model")
    compiled = _compile(tmp_path, quantization="f32")
    rng = np.random.default_rng(5)
    tokens = rng.integers(3, model.config.vocab_size, 75).tolist()
    expected = _logits(model, tokens)
    assert error(compiled.extend(tokens[:41]), expected[:41]) <= 1e-4
    for i in range(41, 46):
        assert error(compiled.extend(tokens[i : i + 1]), expected[i : i + 1]) <= FLIP, i
    assert error(compiled.extend(tokens[46:]), expected[46:]) <= 1e-4
    others = {
        s: rng.integers(3, model.config.vocab_size, n).tolist()
        for s, n in ((1, 1), (2, 33), (3, 64))
    }
    for sequence, logits in compiled.extend_many(others).items():
        assert error(logits, _logits(model, others[sequence])) <= FLIP, sequence
    grown = {
        s: rng.integers(3, model.config.vocab_size, n).tolist() for s, n in ((3, 1), (1, 9), (2, 1))
    }
    for sequence, logits in compiled.extend_many(grown).items():
        whole = _logits(model, others[sequence] + grown[sequence])
        assert error(logits, whole[-len(grown[sequence]) :]) <= FLIP, sequence


def _compile(folder: Path, **options: Any) -> Compiled:
    return Compiled(
        folder / "model", folder / "artifact", context=128, max_tokens=128, max_rows=128, **options
    )


@pytest.mark.parametrize("quantization", ["q4f16_1", "q4f16_1_min", "q8f16", "f16", "bf16"])
@pytest.mark.parametrize("activations", ["int16", "int8"])
def test_quantized_logits(quantization: str, activations: str, tmp_path: Path) -> None:
    """Against Transformers on the dequantized weights."""
    from pumice.quantization import get_format
    from pumice.quantization.pack import dequantize

    if activations == "int8" and quantization != "q4f16_1":
        pytest.skip("the coarse form is checked with one format; its arithmetic is the same")
    model = make_model("llama", seed=4)
    model.save_pretrained(tmp_path / "model")
    fmt = get_format(quantization)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim != 2:
                continue
            if fmt.quantize is not None:
                parameter.copy_(torch.tensor(dequantize(fmt.quantize(parameter.numpy()), fmt)))
            else:
                parameter.copy_(
                    parameter.to(torch.float16 if quantization == "f16" else torch.bfloat16)
                )
    compiled = _compile(tmp_path, quantization=quantization, activations=activations)
    tokens = np.random.default_rng(6).integers(3, model.config.vocab_size, 70).tolist()
    expected = _logits(model, tokens)
    # int16 must be as good as exact. The coarse form loses much on these deliberately large random
    # weights.
    limit = 5e-2 if activations == "int8" else 3e-3
    assert error(compiled.extend(tokens[:65]), expected[:65]) <= limit
    assert error(compiled.extend(tokens[65:66]), expected[65:66]) <= limit
