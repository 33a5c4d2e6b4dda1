"""Embeddings: one vector for a text, of a causal model's last hidden states.

A state has seen its own token and those before it. The mean over all tokens is what models that
were not trained to embed do best with; the last token's state has seen the whole text, and is what
models that were trained so are made for (Neelakantan et al., arXiv:2201.10005).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from pumice.errors import DeviceError, EngineClosedError, UnavailableError, UsageError

if TYPE_CHECKING:
    from pumice.engine.request import Completion

Pooling = Literal["mean", "last"]


def check_pooling(pooling: object) -> None:
    """UsageError when there is no such pooling."""
    if pooling not in get_args(Pooling):
        raise UsageError(f"pooling is {pooling!r}; allowed: {', '.join(get_args(Pooling))}")


class Pool:
    """Takes a sequence's hidden states chunk by chunk, and makes them one vector."""

    def __init__(self, pooling: Pooling) -> None:
        self._pooling = pooling
        self._sum: np.ndarray | None = None
        self._count = 0

    def part(self, rows: np.ndarray) -> np.ndarray:
        """What is kept of the states of a chunk, float32[tokens, H]: float64[H]."""
        wanted = rows[-1:] if self._pooling == "last" else rows
        total: np.ndarray = wanted.sum(axis=0, dtype=np.float64)
        return total

    def add(self, part: np.ndarray, start: int, count: int) -> None:
        """A chunk of `count` tokens was computed. One that starts at 0 begins anew: what lost its
        blocks is computed again.
        """
        mean = self._pooling == "mean"
        self._sum = part if start == 0 or not mean or self._sum is None else self._sum + part
        self._count = start + count if mean else 1

    def vector(self) -> np.ndarray:
        """float32[H]; not finite where a state is not."""
        assert self._sum is not None
        return (self._sum / self._count).astype(np.float32)


def vector_of(done: Completion, normalize: bool) -> np.ndarray:
    """The vector of a finished request, float32[H], of length 1 if it is to be.

    EngineClosedError when it was cancelled, UnavailableError when its deadline came first,
    DeviceError when it failed.
    """
    if done.vector is None:
        if done.finish_reason == "cancelled":
            raise EngineClosedError("the engine closed before the embedding was computed")
        if done.finish_reason == "deadline":
            raise UnavailableError("the embedding was not computed before its deadline")
        raise DeviceError(f"the embedding failed: {done.error}")
    length = float(np.linalg.norm(done.vector.astype(np.float64)))
    return done.vector / np.float32(length) if normalize and length else done.vector
