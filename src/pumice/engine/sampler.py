"""Chooses tokens from logits.

Greedy rows are decided by argmax alone, the lowest id winning ties, so that the batch around a request cannot change its text. A sampled
row uses its request's own generator and one draw a token.
"""

from __future__ import annotations

import numpy as np

from pumice.engine.request import SamplingParams, TokenLogprob
from pumice.engine.sequence import Sequence

_CANDIDATES = 1024  # enough for almost every top-p; more are sorted only when they are not


def adjust(logits: np.ndarray, sequence: Sequence) -> np.ndarray:
    """float32[V] after penalties and bias; a copy."""
    params = sequence.params
    out = logits.copy()
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(sequence.tokens))
        values = out[seen]
        penalty = np.float32(params.repetition_penalty)
        out[seen] = np.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty or params.presence_penalty:
        ids, counts = np.unique(np.asarray(sequence.output, dtype=np.int64), return_counts=True)
        if len(ids):
            penalty = params.frequency_penalty * counts + params.presence_penalty
            out[ids] -= penalty.astype(np.float32)
    for token, bias in params.logit_bias.items():
        if token < len(out):
            out[token] += np.float32(bias)
    return out


def candidates(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """(ids, probabilities) that temperature and filters leave, the likeliest first; the probabilities sum to 1."""
    scaled = logits.astype(np.float64) / params.temperature
    if 0 < params.top_k < len(scaled):
        ids = np.argpartition(scaled, -params.top_k)[-params.top_k :]
    elif params.top_p < 1.0 and len(scaled) > _CANDIDATES:
        ids = _nucleus(scaled, params.top_p)
    else:
        ids = np.arange(len(scaled))
    # Likeliest first; ties by id, so that the order never depends on the partition's.
    ids = ids[np.lexsort((ids, -scaled[ids]))]
    values = scaled[ids]
    weights = np.exp(values - values[0])
    # With top_k the nucleus is one of what top_k left, else of the whole vocabulary.
    total = weights.sum() if params.top_k else np.exp(scaled - values[0]).sum()
    keep = len(ids)
    if params.top_p < 1.0:
        keep = int(np.searchsorted(np.cumsum(weights), params.top_p * total, side="left")) + 1
    if params.min_p > 0.0:
        keep = min(keep, int(np.count_nonzero(weights >= params.min_p)))
    keep = max(1, min(keep, len(ids)))
    kept = weights[:keep]
    return ids[:keep], kept / kept.sum()


def _nucleus(scaled: np.ndarray, top_p: float) -> np.ndarray:
    """Ids among which the nucleus lies: the likeliest 1024 when they hold top_p of the probability, else all."""
    ids = np.argpartition(scaled, -_CANDIDATES)[-_CANDIDATES:]
    peak = scaled.max()
    if np.exp(scaled[ids] - peak).sum() >= top_p * np.exp(scaled - peak).sum():
        return ids
    return np.arange(len(scaled))


def choose(logits: np.ndarray, sequence: Sequence) -> int:
    """The next token of a sequence from its row float32[V]."""
    params = sequence.params
    row = adjust(logits, sequence) if params.penalized else logits
    if params.greedy:
        return int(row.argmax())
    ids, probabilities = candidates(row, params)
    draw = sequence.rng.random()
    index = int(np.searchsorted(np.cumsum(probabilities), draw, side="right"))
    return int(ids[min(index, len(ids) - 1)])


def logprob(logits: np.ndarray, token: int, top: int) -> TokenLogprob:
    """Log-probabilities under the model itself."""
    row = logits.astype(np.float64)
    row = row - row.max()
    row = row - np.log(np.exp(row).sum())
    best: tuple[tuple[int, float], ...] = ()
    if top:
        ids = np.argpartition(row, -top)[-top:]
        ids = ids[np.lexsort((ids, -row[ids]))]
        best = tuple((int(i), float(row[i])) for i in ids)
    return TokenLogprob(token, float(row[token]), best)
