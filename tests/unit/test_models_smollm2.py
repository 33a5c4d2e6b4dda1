"""The default model's file: the oracle's text is right, and our binding agrees with the oracle.

Its queries and keys are permuted, as of any Llama written by llama.cpp's converter: the oracle
rotates them in pairs, our binding puts the rows back, and both give the same logits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_models_bind import bound, dense

from pumice.models.parameters import INV_FREQ
from pumice.weights.source import open_source
from reference.files import read_gguf
from reference.forward import ReferenceModel
from reference.smollm import PROMPTS, build_tokenizer, chat_ids, read_metadata


@pytest.fixture(scope="module")
def oracle(smollm2_gguf: Path) -> ReferenceModel:
    return read_gguf(smollm2_gguf)


@pytest.fixture(scope="module")
def meta(smollm2_gguf: Path) -> dict[str, Any]:
    return read_metadata(smollm2_gguf)


def test_the_oracle_knows_the_capital_of_france(
    oracle: ReferenceModel, meta: dict[str, Any]
) -> None:
    tokenizer = build_tokenizer(meta)
    prompt = chat_ids(meta, tokenizer, PROMPTS[0])
    tokens, _ = oracle.greedy(prompt, 24, stop=[meta["tokenizer.ggml.eos_token_id"]])
    assert tokenizer.decode(tokens) == "The capital of France is Paris."


def test_bound_weights_give_the_oracles_logits(
    smollm2_gguf: Path, oracle: ReferenceModel, meta: dict[str, Any]
) -> None:
    tokens = chat_ids(meta, build_tokenizer(meta), PROMPTS[9])
    with open_source(smollm2_gguf) as source:
        values = {name: dense(fmt, value) for name, fmt, value in bound(source)}
    inv_freq = values.pop(INV_FREQ)
    np.testing.assert_allclose(inv_freq, oracle.settings.inv_freq, rtol=1e-6)
    s = oracle.settings
    halves = type(s)(s.layers, s.heads, s.kv_heads, s.head_dim, s.eps, inv_freq)
    got, want = ReferenceModel(halves, values).logits(tokens), oracle.logits(tokens)
    assert np.linalg.norm(got - want) < 1e-4 * np.linalg.norm(want)
