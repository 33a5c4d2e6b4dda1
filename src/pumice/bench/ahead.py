"""Timed generation on a device that draws tokens itself, as the engine runs it: every step takes
the greedy tokens of the one before, and is launched before those are read.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pumice.runtime.step import RowSampling, SampledStep, SamplingExecutable, StepBatch


def greedy(rows: int) -> RowSampling:
    return RowSampling(
        temperature=np.zeros(rows, np.float32),
        seeds=np.zeros(rows, np.int64),
        draws=np.zeros(rows, np.int32),
        top_k=np.zeros(rows, np.int32),
        top_p=np.ones(rows, np.float32),
        min_p=np.zeros(rows, np.float32),
    )


def generate_ahead(
    executor: SamplingExecutable, batch_of: Callable[[int], StepBatch], count: int, rows: int
) -> np.ndarray:
    """`count` steps, at least one; returns the last one's logits float32[rows, V].

    batch_of: the batch of a step by its number; only the first one's tokens are used.
    """
    how, sources = greedy(rows), np.arange(rows, dtype=np.int32)
    step: SampledStep = executor.launch(batch_of(0), how)
    for number in range(1, count):
        following = executor.launch(batch_of(number), how, sources)
        step.tokens()
        step = following
    step.tokens()
    return step.logits()
