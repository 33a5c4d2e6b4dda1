"""The step: the one contract between an engine, which knows no model, and an executable, which
knows no request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class StepLimits:
    """What one step may hold. An engine must stay within."""

    vocab_size: int
    max_tokens: int  # T of one step
    max_sequences: int  # S of one step
    max_rows: int  # R: rows of logits of one step
    context_length: int  # positions 0 … context_length − 1
    block_size: int
    num_blocks: int  # blocks that the cache has
    hidden_size: int = 0  # H: columns of `embed`; 0 where there is no `embed`
    # Numbers of tokens, from small to large, that a step is padded to unless every sequence has
    # one token; empty where steps are not padded.
    padded_tokens: tuple[int, ...] = ()


@dataclass
class StepBatch:
    """A ragged batch; all arrays int32 and contiguous.

    Sequence s owns tokens query_start[s] … query_start[s+1]−1, which are the *last* ones of its
    context.
    """

    tokens: np.ndarray  # [T] token ids
    positions: np.ndarray  # [T] position of each token in its sequence
    slots: np.ndarray  # [T] cache slot to write: block · block_size + offset
    query_start: np.ndarray  # [S+1] offsets into tokens
    context_len: np.ndarray  # [S] tokens in the cache after this step's are appended
    block_table: (
        np.ndarray
    )  # [S, M] block of each block_size stretch of the context; unused entries are 0
    sample_rows: np.ndarray  # [R] rows of `tokens` whose result is wanted


@dataclass
class RowSampling:
    """How a token is drawn from each row of logits; arrays of one element a row.

    A token is decided by its own row and these: draws is the counter of the seed's random numbers.
    """

    temperature: np.ndarray  # float32; 0 takes the largest logit, the first of equals
    seeds: np.ndarray  # int64
    draws: np.ndarray  # int32
    top_k: np.ndarray  # int32; 0: all
    top_p: np.ndarray  # float32; 1: all
    min_p: np.ndarray  # float32; 0: all


class SampledStep(Protocol):
    """A step that was launched, and may still run."""

    def tokens(self) -> np.ndarray:
        """The drawn tokens int32[R], −1 where a row is damaged; waits for them. Before the second
        launch after this one.
        """

    def logits(self) -> np.ndarray:
        """As `Executable.step`; before the next launch."""


class SamplingExecutable(Protocol):
    """An executable that can draw tokens where the logits are (`samples` says whether this one
    can), so that only ids come back, and the next step may be launched before they do.
    """

    samples: bool

    def launch(
        self, batch: StepBatch, sampling: RowSampling, sources: np.ndarray | None = None
    ) -> SampledStep:
        """Launches a step. sources: int32[T], for each token the row of the launch before whose
        drawn token it is, or −1 where the batch has it.
        """


class Executable(Protocol):
    """A loaded model on a device."""

    limits: StepLimits

    def step(self, batch: StepBatch) -> np.ndarray:
        """Runs a batch; returns logits float32[R, V], valid until the next step."""

    def embed(self, batch: StepBatch) -> np.ndarray:
        """Runs a batch; returns hidden states float32[R, H] after the last norm, valid until the
        next step. R may be as large as max_tokens. UnsupportedError where there are none.
        """
