"""Generation of a benchmark on a device that draws: the steps, and that they are launched ahead."""

from __future__ import annotations

import numpy as np
from engine_drawing_toy import DrawingToy
from engine_toy import greedy_reference, hashed_logits, small_limits

from pumice.bench.ahead import generate_ahead
from pumice.bench.model import Sequence, Together
from pumice.runtime.step import StepBatch

VOCAB = 23
MODEL = hashed_logits(VOCAB)


def test_every_step_takes_the_token_before_it() -> None:
    toy = DrawingToy(small_limits(vocab_size=VOCAB), MODEL)
    sequence = Sequence(toy.limits)
    toy.step(sequence.batch(np.array([3, 4, 5], np.int32), 0))
    first = np.array([6], np.int32)
    logits = generate_ahead(toy, lambda i: sequence.batch(first, 3 + i), 5, 1)
    text = [3, 4, 5, 6, *greedy_reference(MODEL, [3, 4, 5, 6], 4)]
    assert toy.tokens[:8].tolist() == text
    assert (logits[0] == MODEL(np.array(text))).all()
    assert (toy.launches, toy.ahead) == (5, 4)


def test_several_sequences_together() -> None:
    toy = DrawingToy(small_limits(vocab_size=VOCAB), MODEL)
    sequences = [Sequence(toy.limits, index, 12) for index in range(3)]
    together = Together(sequences)
    starts = np.array([1, 2, 3], np.int32)

    def batch_of(i: int) -> StepBatch:
        return together.batch(starts, i)

    logits = generate_ahead(toy, batch_of, 4, 3)
    for row, start in enumerate(starts.tolist()):
        text = [start, *greedy_reference(MODEL, [start], 3)]
        assert (logits[row] == MODEL(np.array(text))).all()
