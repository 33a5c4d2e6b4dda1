"""TINY models compiled for AMD GPUs: their machine code is executed instruction by instruction, by
the real runtime over an emulated card's driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.e2e.compiled import Compiled, error
from tests.e2e.test_tiny_models import _logits
from tests.reference.tiny import make_model

from blas_fakes import stand_in
from pumice.engine.engine import LLMEngine
from pumice.engine.request import SamplingParams
from pumice.quantization import get_format
from pumice.quantization.pack import dequantize

#: Activations are float16: ten bits, over some twenty products.
LIMIT = 5e-3
SIZES = {"max_tokens": 16, "max_sequences": 2, "max_rows": 16}


def _model(model_type: str, quantization: str, folder: Path, **overrides: Any) -> Any:
    """A random TINY model on disk, and with its weights as the compiled one has them."""
    model = make_model(model_type, seed=5, **overrides)
    model.save_pretrained(folder)
    fmt = get_format(quantization)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2 and fmt.quantize is not None:
                parameter.copy_(torch.tensor(dequantize(fmt.quantize(parameter.numpy()), fmt)))
            elif parameter.ndim == 2:
                parameter.copy_(parameter.to(torch.float16))
    return model


@pytest.mark.parametrize(
    ("model_type", "quantization", "arch", "overrides"),
    [
        ("llama", "q4f16_1", "gfx1100", {}),
        ("llama", "q4f16_1_min", "gfx1201", {"tie_word_embeddings": True, "attention_bias": True}),
        ("mistral", "q8f16", "gfx1100", {"sliding_window": 12}),
        ("qwen2", "f16", "gfx1100", {}),
        ("qwen3", "q4f16_1", "gfx942", {}),
    ],
    ids=["llama", "llama-tied", "mistral", "qwen2", "qwen3"],
)
def test_logits(
    model_type: str, quantization: str, arch: str, overrides: dict[str, Any], tmp_path: Path
) -> None:
    """Prefill, a step, another chunk, and a ragged batch; more than one block of the cache."""
    model = _model(model_type, quantization, tmp_path / "model", **overrides)
    compiled = Compiled(
        tmp_path / "model", tmp_path / "artifact", context=64, emulated=arch,
        quantization=quantization, **SIZES,
    )  # fmt: skip
    rng = np.random.default_rng(7)
    tokens = rng.integers(3, model.config.vocab_size, 38).tolist()
    expected = _logits(model, tokens)
    at = 0
    for count in (15, 1, 16, 1, 5):
        got = compiled.extend(tokens[at : at + count])
        assert len(got) == count
        assert error(got, expected[at : at + count]) <= LIMIT, (at, count)
        at += count
    parts = {1: tokens[:5], 2: tokens[20:29]}
    for sequence, got in compiled.extend_many(parts).items():
        assert error(got, _logits(model, parts[sequence])) <= LIMIT, sequence
    both = {1: tokens[5:6], 2: tokens[29:30]}
    for sequence, got in compiled.extend_many(both).items():
        whole = _logits(model, parts[sequence] + both[sequence])
        assert error(got, whole[-1:]) <= LIMIT, sequence


def test_a_prompt_by_a_vendor_s_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for hipBLASLt multiplies with the weights that a kernel has unpacked."""
    opened = stand_in(monkeypatch)
    model = _model("llama", "q4f16_1", tmp_path / "model", max_position_embeddings=160)
    compiled = Compiled(
        tmp_path / "model", tmp_path / "artifact", context=160, emulated="gfx1100",
        quantization="q4f16_1", max_tokens=128, max_sequences=1, max_rows=128,
        vendor_blas="always",
    )  # fmt: skip
    tokens = np.random.default_rng(7).integers(3, model.config.vocab_size, 126).tolist()
    assert error(compiled.extend(tokens[:125]), _logits(model, tokens)[:125]) <= LIMIT
    (fake,) = opened
    assert len(fake.queries) == 5 and "hipBLASLt 1.2.3" in compiled.executor.products
    assert len(fake.seen) >= 4 * model.config.num_hidden_layers + 1
    assert error(compiled.extend(tokens[125:]), _logits(model, tokens)[125:]) <= LIMIT


@pytest.mark.parametrize("arch", ["gfx1100", "gfx942"])
def test_a_tiny_llama_answers_as_on_the_cpu(arch: str, tmp_path: Path) -> None:
    """4-bit weights, two requests of different lengths in one batch: the same greedy tokens. The
    card looks for races, reads of unwritten LDS, accesses out of bounds and NaN on the way."""
    make_model("llama", seed=6).save_pretrained(tmp_path / "model")
    options: dict[str, Any] = {"context": 64, "quantization": "q4f16_1"}
    gpu = Compiled(
        tmp_path / "model", tmp_path / arch, emulated=arch, sanitize=True, **SIZES, **options
    )
    cpu = Compiled(tmp_path / "model", tmp_path / "cpu", activations="float32", **options)
    prompts = [[5, 9, 77, 31, 8], [40, 3, 12, 200, 7, 19, 66, 150, 23, 90, 11]]
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    answers = [
        [one.token_ids for one in LLMEngine(made.executor, None).generate(prompts, params)]
        for made in (gpu, cpu)
    ]
    assert answers[0] == answers[1]
    assert all(len(tokens) == 8 for tokens in answers[0])
