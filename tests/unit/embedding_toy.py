"""The toy model of `engine_toy` with hidden states, and what an engine is to make of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from engine_toy import CopyingToy, hashed_logits, limits, tokenizer

from pumice.engine.engine import LLMEngine
from pumice.runtime.step import StepBatch, StepLimits

WIDTH = limits().vocab_size  # as the toy's logits; what is in them differs


def state_of(tokens: Any) -> np.ndarray:
    """The hidden state of a sequence's last token: float32[WIDTH]."""
    return hashed_logits(WIDTH)(np.append(np.asarray(tokens), 12345)) + 1


def expected(tokens: Any, pooling: str = "mean", normalize: bool = True) -> np.ndarray:
    """float64, from the states one by one."""
    states = np.stack([state_of(tokens[: i + 1]) for i in range(len(tokens))]).astype(np.float64)
    vector: np.ndarray = states.mean(axis=0) if pooling == "mean" else states[-1]
    return vector / np.linalg.norm(vector) if normalize else vector


class EmbeddingToy(CopyingToy):
    """Has `embed`, which checks a batch as `step` does. embedded: (T, S) of each call."""

    def __init__(self, limits: StepLimits) -> None:
        super().__init__(dataclasses.replace(limits, hidden_size=WIDTH))
        self.hidden = state_of
        self.embedded: list[tuple[int, int]] = []

    def embed(self, batch: StepBatch) -> np.ndarray:
        limits, model = self.limits, self.model
        self.limits = dataclasses.replace(limits, max_rows=limits.max_tokens)
        self.model = self.hidden
        try:
            states = self.step(batch)
        finally:
            self.limits, self.model = limits, model
        self.embedded.append((len(batch.tokens), len(batch.context_len)))
        return states


def make_embedder(bounds: StepLimits | None = None, **settings: Any) -> tuple[LLMEngine, Any]:
    """settings: `LLMEngine`'s."""
    toy = EmbeddingToy(bounds or limits())
    return LLMEngine(toy, tokenizer(), **settings), toy
