"""Few tokens out of a vocabulary, without sorting the vocabulary.

A row of V values is looked at as 64 × G: column g is a group of the tokens g, g + G, g + 2G … The
maximum or sum of all groups is one pass of vector instructions. The k-th largest of G group maxima
is a lower bound of the k-th largest value, and few values are above it.
"""

from __future__ import annotations

import numpy as np

GROUP = 64
_HALVINGS = 7


def padded(vocab_size: int) -> int:
    """The length of a row that consists of whole groups."""
    return -(-vocab_size // GROUP) * GROUP


def group_max(rows: np.ndarray) -> np.ndarray:
    """float32[n, padded V] → float32[n, G]."""
    maxima: np.ndarray = rows.reshape(len(rows), GROUP, -1).max(axis=1)
    return maxima


def group_sum(rows: np.ndarray) -> np.ndarray:
    """float32[n, padded V] → float32[n, G]."""
    sums: np.ndarray = rows.reshape(len(rows), GROUP, -1).sum(axis=1)
    return sums


def lower_bound(row: np.ndarray, maxima: np.ndarray, k: int) -> float:
    """A value that at least k of the row's are not below, and few more.

    row: float32[padded V]; maxima: float32[G], its group maxima; 1 ≤ k ≤ padded V.
    """
    values = maxima if k <= len(maxima) else row
    return float(np.partition(values, len(values) - k)[len(values) - k])


def mass_bound(row: np.ndarray, weights: np.ndarray, low: float, need: float) -> float:
    """A value not under `low` such that what is not below it still weighs `need`, if it did before.

    row: float32[V], none above 0; weights: float32[V]. The highest such value, about.
    """
    where = np.flatnonzero(row >= low)
    values, weights = row[where], weights[where]
    high = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(weights @ (values >= middle).astype(np.float32)) > need:
            low = middle
        else:
            high = middle
    return low


def largest(row: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k largest of float32[padded V], the largest first, ties to the lowest."""
    bound = lower_bound(row, group_max(row[None])[0], k)
    found = np.flatnonzero(row >= bound)
    return found[np.argsort(-row[found], kind="stable")[:k]]


def above(rows: np.ndarray, bounds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is not below float32 bounds[n]: (ids int64[n, K], values float64[n, K]).

    rows: float32[n, padded V], contiguous, none above 0. Sorted by value, the largest first, ties
    to the lowest id; K is the longest row's count, and shorter rows end in values of -inf.
    """
    where = np.flatnonzero(rows >= bounds[:, None])  # several times faster than nonzero of rows
    row, column = np.divmod(where, rows.shape[1])
    counts = np.bincount(row, minlength=len(rows))
    at = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
    # The bits of positive floats are in the floats' order. With the id below them every key is
    # another, so a plain sort of integers, which has vector instructions, is stable.
    keys = np.full((len(rows), int(counts.max())), _NOTHING)
    bits = np.abs(rows.reshape(-1)[where]).view(np.uint32).astype(np.uint64)
    keys[row, at] = (bits << np.uint64(32)) | column.astype(np.uint64)
    keys.sort(axis=1)
    values = (keys >> np.uint64(32)).astype(np.uint32).view(np.float32)
    ids = (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)
    return ids, -values.astype(np.float64)


_NOTHING = np.uint64(0x7F800000 << 32)  # infinity's bits
