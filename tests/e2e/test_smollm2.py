"""The default model, compiled for this CPU, against an independent NumPy forward over its
dequantized weights."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.e2e.compiled import Compiled
from tests.reference.files import read_gguf
from tests.reference.forward import ReferenceModel
from tests.reference.smollm import PROMPTS, build_tokenizer, chat_ids, read_metadata

from pumice.engine import ChatModule, LLMEngine

TOKENS = 20  # generated for each prompt
CHUNK = 500
TEXTS = ("LICENSE", "docs/architecture.md", "CONTRIBUTING.md", "README.md")
#: Leads in logits below which two tokens count as tied: what 15-bit activations and a float16 cache
#: can turn over.
TIE = 0.1


@pytest.fixture(scope="module")
def reference(smollm2_gguf: Path) -> ReferenceModel:
    return read_gguf(smollm2_gguf)


@pytest.fixture(scope="module")
def compiled(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    folder = tmp_path_factory.mktemp("smollm2") / "artifact"
    return Compiled(smollm2_gguf, folder, context=4128, max_rows=CHUNK)


def test_the_same_greedy_tokens(
    smollm2_gguf: Path, reference: ReferenceModel, compiled: Compiled
) -> None:
    """Each prompt's text, decided token by token along the reference's own; ties aside."""
    tokenizer = build_tokenizer(read_metadata(smollm2_gguf))
    prompts = [tokenizer.encode(text, add_special_tokens=False).ids for text in PROMPTS]
    assert len(prompts) == 20
    different = 0
    for prompt, (tokens, leads) in zip(
        prompts, reference.greedy_many(prompts, TOKENS), strict=True
    ):
        compiled._blocks.clear(), compiled._length.clear()
        compiled._free = list(range(compiled.executor.limits.num_blocks))
        logits = compiled.extend(prompt + tokens)
        chosen = logits[len(prompt) - 1 : -1].argmax(axis=1)
        for ours, theirs, lead in zip(chosen, tokens, leads, strict=True):
            if ours != theirs:
                different += 1
                assert lead < TIE, (ours, theirs, lead)
    assert different <= 4  # of 400


def test_perplexity_is_the_references(
    smollm2_gguf: Path, reference: ReferenceModel, compiled: Compiled
) -> None:
    """Over 1,500 tokens of one text, within 1%; PUMICE_TEST_TOKENS=4000 takes more, and minutes."""
    count = int(os.environ.get("PUMICE_TEST_TOKENS", "1500")) + 1
    tokenizer = build_tokenizer(read_metadata(smollm2_gguf))
    root = Path(__file__).parents[2]
    text = "".join((root / name).read_text() for name in TEXTS)
    tokens = tokenizer.encode(text, add_special_tokens=False).ids[:count]
    assert len(tokens) == count
    compiled._blocks.clear(), compiled._length.clear()
    compiled._free = list(range(compiled.executor.limits.num_blocks))
    total = 0.0
    for start in range(0, len(tokens) - 1, CHUNK):
        part = tokens[start : min(start + CHUNK, len(tokens) - 1)]
        rows = compiled.extend(part).astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        following = tokens[start + 1 : start + 1 + len(part)]
        total -= (rows[np.arange(len(part)), following] - np.log(np.exp(rows).sum(axis=1))).sum()
    ours = float(np.exp(total / (len(tokens) - 1)))
    theirs = reference.perplexity(tokens)
    print(f"perplexity over {count - 1:,} tokens: {ours:.4f}, of the reference {theirs:.4f}")
    assert abs(ours / theirs - 1) < 0.01, (ours, theirs)


def test_the_capital_of_france(
    smollm2_gguf: Path, compiled: Compiled, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With the model's own template; its prompt's ids are the independent ones, and a second turn
    reuses the first's blocks."""
    folder = next(tmp_path_factory.getbasetemp().glob("smollm2*")) / "artifact"
    engine = LLMEngine.from_artifact(folder, context_length=1024)
    chat = ChatModule(engine)
    question = "What is the capital of France?"
    assert chat.generate(question) == "The capital of France is Paris."
    meta = read_metadata(smollm2_gguf)
    expected = chat_ids(meta, build_tokenizer(meta), question)
    assert engine.tokenizer is not None
    template = engine.tokenizer.chat_template
    assert template is not None
    from pumice.text.chat_template import ChatTemplate
    from pumice.text.prompt import encode_chat

    messages = [{"role": "user", "content": question}]
    assert encode_chat(engine.tokenizer, ChatTemplate.of(engine.tokenizer), messages) == expected
    text = chat.benchmark_generate("Hi", generate_length=64)
    assert text and "tok/s" in chat.stats()
