"""How many units share a row of tiles along K (`hopper_stream_triton.py`)."""

from __future__ import annotations

from pumice.operators.triton.plan import cdiv

GIVE = 12  # blocks of 64 along K that handing sums of a tile over takes the time of


def units_of(strips: int, blocks: int, most: int) -> int:
    """Units, at most `most` (at least 1), that share `strips` tiles of `blocks` blocks each: all of
    them, each with a stretch of blocks, or fewer that have whole tiles and nothing to hand over,
    whichever is done first."""
    steps = strips * blocks
    most = max(1, min(most, steps))
    found = [(cdiv(steps, most) + (GIVE if strips % most else 0), -most)]
    found += [(strips // units * blocks, -units) for units in range(1, most) if strips % units == 0]
    return -min(found)[1]
