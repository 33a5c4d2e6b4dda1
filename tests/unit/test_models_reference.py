"""The NumPy forward against Transformers on TINY random models, in float32.

What the compiled models are judged by must be right itself: prefill, step by step, every rope
scaling, windows, biases, norms of heads, head widths of their own; from checkpoints and from GGUF.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reference.files import read_checkpoint, read_gguf
from reference.forward import Cache, ReferenceModel
from reference.tiny import make_model
from reference.tiny_gguf import make_tiny_gguf

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
WINDOW = {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-head-dim": ("llama", {"head_dim": 48, "num_attention_heads": 6}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama-llama3": ("llama", {"rope_scaling": LLAMA3}),
    "llama-yarn": ("llama", {"rope_scaling": YARN}),
    "mistral-window": ("mistral", {}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", WINDOW),
    "qwen2-yarn": ("qwen2", {"rope_scaling": {**YARN, "attention_factor": 1.25}}),
    "qwen3": ("qwen3", {}),
    "qwen3-head-dim": ("qwen3", {"head_dim": 64, "tie_word_embeddings": False}),
    "qwen3-bias-window": ("qwen3", {"attention_bias": True, **WINDOW}),
}
TOKENS = 97


def expected(model_type: str, overrides: dict[str, Any]) -> tuple[Any, np.ndarray, np.ndarray]:
    """(model, tokens, Transformers' logits)."""
    model = make_model(model_type, seed=3, **overrides)
    tokens = np.random.default_rng(5).integers(0, model.config.vocab_size, TOKENS)
    with torch.no_grad():
        logits = model(torch.tensor(tokens[None])).logits[0].numpy()
    return model, tokens, logits


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest relative error of a row."""
    assert got.shape == want.shape and np.isfinite(got).all()
    return float((np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)).max())


@pytest.mark.parametrize("case", CASES)
def test_forward_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    model, tokens, want = expected(*CASES[case])
    model.save_pretrained(tmp_path)
    reference = read_checkpoint(tmp_path)
    assert error(reference.logits(tokens), want) < 1e-4
    cache = Cache()  # a prefill, then step by step, across the window where there is one
    parts = [reference.logits(tokens[:31], cache)]
    parts += [reference.logits(tokens[i : i + 1], cache) for i in range(31, TOKENS)]
    assert error(np.concatenate(parts), want) < 1e-4


# llama.cpp's converter leaves out Qwen's windows and yarn's attention_factor.
IN_GGUF = [c for c in CASES if c not in ("qwen2-window", "qwen3-bias-window", "qwen2-yarn")]


@pytest.mark.parametrize("case", IN_GGUF)
def test_gguf_file_is_that_of_transformers(case: str, tmp_path: Path) -> None:
    model_type, overrides = CASES[case]
    _, tokens, want = expected(model_type, overrides)
    path = make_tiny_gguf(model_type, tmp_path / "tiny.gguf", seed=3, **overrides)
    assert error(read_gguf(path).logits(tokens), want) < 1e-4


def test_greedy_many_is_greedy_one_by_one(tmp_path: Path) -> None:
    make_model("llama", seed=1).save_pretrained(tmp_path)
    reference = read_checkpoint(tmp_path)
    prompts = [[5, 9, 100], [7], list(range(40))]
    alone = [reference.greedy(p, 12)[0] for p in prompts]
    assert [tokens for tokens, _ in reference.greedy_many(prompts, 12)] == alone
    stopped, _ = reference.greedy(prompts[0], 12, stop=[alone[0][4]])
    assert stopped == alone[0][: alone[0].index(alone[0][4])]


def test_perplexity_is_that_of_transformers(tmp_path: Path) -> None:
    model, tokens, _ = expected("qwen3", {})
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        ids = torch.tensor(tokens[None])
        loss = float(model(ids, labels=ids).loss)
    found = read_checkpoint(tmp_path).perplexity(tokens)
    assert found == pytest.approx(np.exp(loss), rel=1e-5)


def test_float64_agrees_with_float32(tmp_path: Path) -> None:
    model, tokens, want = expected("qwen2", {})
    model.save_pretrained(tmp_path)
    reference: ReferenceModel = read_checkpoint(tmp_path, np.float64)
    assert error(reference.logits(tokens), want) < 1e-5
