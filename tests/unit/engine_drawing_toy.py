"""A toy executable that draws tokens itself, by the operator's reference."""

from __future__ import annotations

import dataclasses

import numpy as np
from engine_toy import CopyingToy, Model

from pumice.operators.sample_tokens.spec import reference
from pumice.runtime.step import RowSampling, StepBatch, StepLimits


class _Step:
    def __init__(self, logits: np.ndarray, tokens: np.ndarray) -> None:
        self._logits, self._tokens = logits, tokens
        self.next: _Step | None = None
        self.reads = 0

    def tokens(self) -> np.ndarray:
        assert self.next is None or self.next.next is None, "read two launches later"
        self.reads += 1
        return self._tokens

    def logits(self) -> np.ndarray:
        assert self.next is None, "the logits are gone"
        return self._logits


class DrawingToy(CopyingToy):
    """launches: how many; ahead: of those, before the tokens of the one before were read."""

    samples = True

    def __init__(self, limits: StepLimits, model: Model | None = None) -> None:
        super().__init__(limits, model)
        self.launches = self.ahead = 0
        self._drawn = np.zeros(0, np.int32)
        self._step: _Step | None = None

    def launch(
        self, batch: StepBatch, sampling: RowSampling, sources: np.ndarray | None = None
    ) -> _Step:
        rows = len(batch.sample_rows)
        assert all(len(array) == rows for array in vars(sampling).values())
        tokens = batch.tokens.copy()
        if sources is not None:
            given = sources >= 0
            assert self._step is not None and len(sources) == len(tokens)
            tokens[given] = self._drawn[sources[given]]
            self.ahead += self._step.reads == 0
        logits = self.step(dataclasses.replace(batch, tokens=tokens)).copy()
        fine = np.isfinite(logits).all(axis=1)
        inputs = {n: a.copy() for n, a in vars(sampling).items() if n != "draws"}
        inputs |= {"logits": np.where(fine[:, None], logits, 0), "positions": sampling.draws.copy()}
        self._drawn = reference({}, inputs)["tokens"]
        self.launches += 1
        step = _Step(logits, np.where(fine, self._drawn, np.int32(-1)))
        if self._step is not None:
            self._step.next = step
        self._step = step
        return step
