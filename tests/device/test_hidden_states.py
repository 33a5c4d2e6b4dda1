"""The entry point "embed" of compiled TINY models against Hugging Face Transformers."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.e2e.compiled import Compiled, error
from tests.reference.tiny import make_model
from transformers import DynamicCache

from pumice.engine import LLMEngine, SamplingParams
from pumice.errors import UnsupportedError, UsageError
from pumice.models import MODELS
from pumice.runtime.load import load

#: A few rows: a key or value that lies between two float16 may round the other way than in the
#: reference.
FLIP = 6e-4


class _HalfCache(DynamicCache):
    """Keys and values rounded to float16, as the compiled models' cache holds them."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        halves = (x.to(torch.float16).to(torch.float32) for x in (key_states, value_states))
        return super().update(*halves, *args, **kwargs)


def hidden(model: Any, tokens: list[int]) -> np.ndarray:
    """Transformers' last hidden states, after the final norm: float32[T, H]."""
    inner = model.model
    parameters = inspect.signature(inner.forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"
    with torch.no_grad():
        cache = _HalfCache(config=model.config)
        out = inner(torch.tensor([tokens]), **{name: cache}).last_hidden_state[0]
    states: np.ndarray = out.numpy()
    return states


def tokens_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 60, count).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("model_type", MODELS)
def test_states_are_transformers(model_type: str, tmp_path: Path) -> None:
    """A prompt in chunks, a ragged batch after it, rows of every token."""
    model = make_model(model_type, seed=7)
    model.save_pretrained(tmp_path / "model")
    compiled = Compiled(
        tmp_path / "model", tmp_path / "artifact", context=128, quantization="f32",
        max_tokens=64, max_sequences=5, max_rows=3,
    )  # fmt: skip
    limits = compiled.executor.limits
    assert limits.hidden_size == model.config.hidden_size and limits.max_rows == 3
    tokens = tokens_of(75, 5)
    want = hidden(model, tokens)
    assert want.shape[1] == limits.hidden_size
    compiled.executor._arena.fill(0xFF)  # NaN: what was not written is found out
    for start, end in ((0, 41), (41, 42), (42, 75)):
        states = compiled.extend_many({0: tokens[start:end]}, embed=True)[0]
        assert error(states, want[start:end]) <= (FLIP if end - start == 1 else 1e-4)
    others = {s: tokens_of(n, n) for s, n in ((1, 1), (2, 33), (3, 30))}
    for sequence, states in compiled.extend_many(others, embed=True).items():
        assert error(states, hidden(model, others[sequence])) <= FLIP, sequence
    # One of them goes on to logits from the same cache.
    with torch.no_grad():
        logits = model(torch.tensor([others[2] + [9]])).logits[0, -1:].numpy()
    assert error(compiled.extend([9], sequence=2), logits) <= 2e-3
    too_many = {s: tokens_of(13, s) for s in range(4, 9)}
    with pytest.raises(UsageError, match="65 tokens"):
        compiled.extend_many(too_many, embed=True)


@pytest.fixture(scope="module")
def model() -> Any:
    return make_model("llama", seed=3)


@pytest.fixture(scope="module")
def artifact(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hidden")
    model.save_pretrained(folder / "model")
    Compiled(
        folder / "model", folder / "artifact", context=128, quantization="f32",
        max_tokens=64, max_sequences=6, max_rows=8,
    )  # fmt: skip
    return folder / "artifact"


def engine(artifact: Path, **settings: Any) -> LLMEngine:
    return LLMEngine(load(artifact, num_blocks=24, context_length=128), None, **settings)


@pytest.mark.parametrize("chunk", [None, 13])
def test_vectors_of_an_engine(chunk: int | None, artifact: Path, model: Any) -> None:
    e = engine(artifact, prefill_chunk=chunk)
    prompts = [tokens_of(n, n) for n in (1, 31, 64, 65, 128, 2)]
    stream = e.add_request(tokens_of(5, 1), SamplingParams(max_tokens=20))
    pooling: Literal["mean", "last"]
    for pooling in ("mean", "last"):
        for tokens, vector in zip(prompts, e.embed(prompts, pooling, False), strict=True):
            states = hidden(model, tokens).astype(np.float64)
            want = states.mean(axis=0) if pooling == "mean" else states[-1]
            assert error(vector, want) <= FLIP, (pooling, len(tokens))
        for vector in e.embed(prompts, pooling):
            assert abs(np.linalg.norm(vector) - 1) < 1e-6
    while e.has_work:
        done = [d.completion for d in e.step() if d.completion is not None]
    assert [d.request_id for d in done] == [stream] and len(done[0].token_ids) == 20
    assert e.audit() == [] and e.cache.in_use == 0


def test_kernels_are_shared(artifact: Path) -> None:
    """All that "embed" launches "extend" does, too, but for the head."""
    manifest = load(artifact, num_blocks=24, context_length=128).manifest
    extend, embed = (manifest.entries[name] for name in ("extend", "embed"))
    assert {n.kernel for n in embed.launches} <= {n.kernel for n in extend.launches}
    assert [n.label for n in embed.launches] == [n.label for n in extend.launches[:-1]]
    assert (embed.bounds["R"], embed.width) == (embed.bounds["T"], 96)


def test_an_artifact_from_before(artifact: Path, tmp_path: Path) -> None:
    """Runs, and says what it lacks."""
    old = tmp_path / "old"
    old.mkdir()
    for file in artifact.iterdir():
        (old / file.name).symlink_to(file)
    data = json.loads((artifact / "manifest.json").read_text())
    del data["checksum"], data["files"], data["entries"]["embed"]
    for plan in data["entries"].values():
        del plan["width"]
    (old / "manifest.json").unlink()
    (old / "manifest.json").write_text(json.dumps(data))
    e = engine(old)
    assert e.limits.hidden_size == 0
    with pytest.raises(UnsupportedError, match="hidden states"):
        e.embed([3, 4])
    with pytest.raises(UnsupportedError, match="no entry point"):
        e.executable.embed(None)  # type: ignore[arg-type]
    tokens, params = tokens_of(9, 1), SamplingParams(max_tokens=5)
    (now,) = engine(artifact).generate(tokens, params)
    assert e.generate(tokens, params)[0].token_ids == now.token_ids


def test_quantized_states(tmp_path: Path) -> None:
    """The last norm gives floats there, where those of the layers give codes."""
    from pumice.quantization import get_format
    from pumice.quantization.pack import dequantize

    model = make_model("llama", seed=4)
    model.save_pretrained(tmp_path / "model")
    fmt = get_format("q4f16_1")
    assert fmt.quantize is not None
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.copy_(torch.tensor(dequantize(fmt.quantize(parameter.numpy()), fmt)))
    compiled = Compiled(
        tmp_path / "model", tmp_path / "artifact", context=128, quantization="q4f16_1"
    )
    tokens = tokens_of(70, 6)
    states = compiled.extend_many({0: tokens}, embed=True)[0]
    assert error(states, hidden(model, tokens)) <= 3e-3
