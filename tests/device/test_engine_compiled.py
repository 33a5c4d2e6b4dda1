"""The engine on a compiled model: shared blocks that are copied, guesses, preemption, chunks.

The model is so small and exact (float32) that texts do not depend on how a batch is cut.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.reference.tiny import make_model

from pumice.compiler.compile import CompileOptions, compile_model
from pumice.engine import LLMEngine, SamplingParams, Speculation
from pumice.runtime.load import load
from pumice.targets.detect import detect_cpu


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    made: torch.nn.Module = make_model("llama", seed=3)
    return made


@pytest.fixture(scope="module")
def artifact(model: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(folder / "model")  # type: ignore[operator]
    options = CompileOptions(quantization="f32", max_tokens=64, max_sequences=6, max_rows=24)
    compile_model(
        folder / "model", target=detect_cpu(), output=folder / "artifact", options=options
    )
    return folder / "artifact"


def engine(artifact: Path, *, blocks: int = 40, **settings: object) -> LLMEngine:
    executor = load(artifact, num_blocks=blocks, context_length=128)
    return LLMEngine(executor, None, **settings)  # type: ignore[arg-type]


def prompt(length: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(3, 60, length).tolist()  # type: ignore[no-any-return]


DRAWN = SamplingParams(temperature=1.0, seed=5, max_tokens=40)


def test_greedy_tokens_are_transformers(artifact: Path, model: torch.nn.Module) -> None:
    e = engine(artifact, prefill_chunk=13)
    prompts = [prompt(n, n) for n in (1, 31, 32, 50)]
    for tokens, done in zip(
        prompts, e.generate(prompts, SamplingParams(max_tokens=30)), strict=True
    ):
        whole = tokens + done.token_ids
        with torch.no_grad():
            logits = model(torch.tensor([whole])).logits[0].numpy()
        rows = logits[len(tokens) - 1 : -1]
        taken = rows[np.arange(30), done.token_ids]
        assert (rows.max(axis=1) - taken < 5e-3).all()  # the cache holds float16


def test_outputs_that_share_a_begun_block(artifact: Path) -> None:
    e = engine(artifact)
    tokens = prompt(45)
    done = e.generate(tokens, DRAWN, n=4)
    assert e.cache.copied == 3
    for index, output in enumerate(done):
        alone = engine(artifact, prefix_cache=False)
        (expected,) = alone.generate(tokens, DRAWN.replace(seed=5 + index))
        assert output.token_ids == expected.token_ids
    assert len({tuple(d.token_ids) for d in done}) == 4
    assert e.audit() == []


def test_guesses_change_nothing(artifact: Path) -> None:
    tokens = prompt(6) * 5
    params = [DRAWN.replace(temperature=0.3, top_k=4), SamplingParams(max_tokens=40)]
    expected = engine(artifact).generate([tokens, tokens], params)
    guessing = engine(artifact, speculation=Speculation("ngram", 5, adaptive=False))
    done = guessing.generate([tokens, tokens], params)
    assert [d.token_ids for d in done] == [d.token_ids for d in expected]
    assert guessing.figures()["speculation"]["proposed"] > 20
    itself = engine(
        artifact,
        speculation=Speculation(
            "draft", 4, adaptive=False, draft=load(artifact, num_blocks=20, context_length=128)
        ),
    )
    done = itself.generate([tokens, tokens], params)
    assert [d.token_ids for d in done] == [d.token_ids for d in expected]
    figures = itself.figures()["speculation"]
    assert figures["accepted"] > 0.6 * figures["proposed"] > 20  # its own greedy guesses


def test_preemption_and_the_prefix_cache(artifact: Path) -> None:
    crowded = engine(artifact, blocks=5)
    prompts = [[*prompt(40), i] for i in range(5)]
    done = crowded.generate(prompts, DRAWN.replace(max_tokens=70))
    assert crowded.scheduler.decisions.preempted > 0 and crowded.stats.cached_tokens > 0
    roomy = engine(artifact, prefix_cache=False)
    expected = roomy.generate(prompts, DRAWN.replace(max_tokens=70))
    assert [d.token_ids for d in done] == [d.token_ids for d in expected]
    assert crowded.audit() == []
