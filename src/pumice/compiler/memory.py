"""Places intermediate tensors in one arena.

Greedy by size (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference",
2020): the largest tensor first, each
at the lowest offset where it overlaps no tensor that lives at the same time. Sizes are the bounds
of symbolic sizes, so a plan's
offsets never change with the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True)
class Lifetime:
    """A tensor of `nbytes` that is written by launch `first` and read for the last time by launch
    `last`."""

    name: str
    nbytes: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def align(n: int, alignment: int = ALIGNMENT) -> int:
    return -(-n // alignment) * alignment


def place(tensors: Sequence[Lifetime], alignment: int = ALIGNMENT) -> tuple[dict[str, int], int]:
    """Offsets by name, multiples of `alignment`, and the arena's size in bytes."""
    offsets: dict[str, int] = {}
    placed: list[tuple[int, int, Lifetime]] = []  # start, end, tensor
    total = 0
    for tensor in sorted(tensors, key=lambda t: (-t.nbytes, t.first, t.name)):
        size = align(tensor.nbytes, alignment)
        start = 0
        for other_start, other_end, other in sorted(placed, key=lambda p: p[0]):
            if not tensor.overlaps(other):
                continue
            if other_start - start >= size:
                break
            start = max(start, other_end)
        offsets[tensor.name] = start
        placed.append((start, start + size, tensor))
        total = max(total, start + size)
    return offsets, total
