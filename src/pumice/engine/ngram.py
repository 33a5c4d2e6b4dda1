"""Guesses from the text itself: what followed its last tokens when they were there before.

Prompt lookup (Saxena, 2023): summaries, edits and code repeat their input, and models repeat
themselves. It costs a comparison of integer arrays.
"""

from __future__ import annotations

import numpy as np

from pumice.engine.sequence import Sequence

_LONGEST, _SHORTEST = 4, 2  # tokens that must be the same


class NgramProposer:
    """Keeps nothing between steps."""

    def propose(self, wanted: list[tuple[Sequence, int]]) -> None:
        for sequence, count in wanted:
            length = sequence.length
            found = _follows(sequence.tokens[:length])
            if found:
                # What stands between that place and the end may go on and on.
                where = found + np.arange(count) % (length - found)
                sequence.tokens[length : length + count] = sequence.tokens[where]
                sequence.draft = count

    def forget(self, sequence: Sequence) -> None:
        pass


def _follows(tokens: np.ndarray) -> int:
    """Where the tokens stand that followed the longest end of int32[n] that was there before, the
    latest of such places; 0 when there is none.
    """
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])  # the last token of an earlier occurrence
    best = 0
    for back in range(1, min(_LONGEST, len(tokens) - 1)):
        ends = ends[ends >= back]
        ends = ends[tokens[ends - back] == tokens[-1 - back]]
        if not len(ends):
            break
        if back + 1 >= _SHORTEST:
            best = int(ends[-1]) + 1
    return best
