"""The part of a step that computes hidden states for embeddings."""

from __future__ import annotations

import numpy as np

from pumice.engine.batch import BatchBuilder
from pumice.engine.plan import StepPlan
from pumice.engine.sequence import Sequence
from pumice.runtime.step import Executable


def run_embedding(
    executable: Executable, builder: BatchBuilder, plan: StepPlan
) -> list[np.ndarray]:
    """Runs the sequences of a plan that are embedded. Returns what the pool of each keeps of its
    hidden states, float64[H]; nothing counts until `pool_states`.
    """
    if plan.embedding is None:
        return []
    rows = executable.embed(builder.build_embedding(plan.embedding))
    parts, at = [], 0
    for sequence, count in zip(plan.embedding.sequences, plan.embedding.counts, strict=True):
        assert sequence.pool is not None
        parts.append(sequence.pool.part(rows[at : at + count]))
        at += count
    return parts


def pool_states(plan: StepPlan, parts: list[np.ndarray]) -> list[tuple[Sequence, str | None]]:
    """Gives the pools what a step kept, before the plan is committed. Returns the sequences that
    are complete, and those that failed with the reason.
    """
    if plan.embedding is None:
        return []
    ended: list[tuple[Sequence, str | None]] = []
    embedding = plan.embedding
    for sequence, count, part in zip(embedding.sequences, embedding.counts, parts, strict=True):
        assert sequence.pool is not None
        end = sequence.computed + count
        sequence.pool.add(part, sequence.computed, count)
        if not np.isfinite(part).all():
            ended.append((sequence, f"hidden states before token {end} are not finite"))
        elif end == sequence.length:
            ended.append((sequence, None))
    return ended
