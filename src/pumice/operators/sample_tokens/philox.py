"""Philox-4x32-10 (Salmon et al., SC 2011): random numbers that depend on a counter only."""

from __future__ import annotations

import numpy as np

_MASK = np.uint64(0xFFFFFFFF)


def philox(seed: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """uint32 of each 64-bit seed at a counter (its first word; the other three are 0)."""
    seed = np.asarray(seed, np.int64).view(np.uint64)
    c0 = np.asarray(counter, np.int64).astype(np.uint64) & _MASK
    c1 = c2 = c3 = np.zeros_like(c0)
    k0, k1 = seed & _MASK, seed >> np.uint64(32)
    a, b = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
    for _ in range(10):
        high, low = b * c2, a * c0
        c0, c2 = (high >> np.uint64(32)) ^ c1 ^ k0, (low >> np.uint64(32)) ^ c3 ^ k1
        c1, c3 = high & _MASK, low & _MASK
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & _MASK, (k1 + np.uint64(0xBB67AE85)) & _MASK
    return np.asarray(c0.astype(np.uint32))


def uniform(bits: np.ndarray) -> np.ndarray:
    """uint32 → float32 in [0, 1): the upper 24 bits."""
    return np.asarray((bits >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24))
