"""What a step costs with guesses and without, from measurements.

Plain steps are remembered by their number of sequences. Steps with guesses are taken for a fixed
part and one a token: the line of least squares, older steps counting less.
"""

from __future__ import annotations

_SHARE = 0.2  # of a new plain step in the mean
_FADE = 0.97  # of what was before, with each step that has guesses
_ENOUGH = 4  # steps
_LEAST_SHARE = 0.02
_PROFIT = 1.03  # a gain that is worth the change


class StepCost:
    """Seconds."""

    def __init__(self) -> None:
        self._plain: dict[int, tuple[int, float]] = {}  # sequences → steps seen, mean seconds
        self._count = self._t = self._tt = self._s = self._ts = 0.0

    def observe(self, sequences: int, drafted: int, seconds: float) -> None:
        """A step of one token and `drafted` guesses in all for so many sequences."""
        if not drafted:
            seen, mean = self._plain.get(sequences, (0, seconds))
            self._plain[sequences] = seen + 1, mean + _SHARE * (seconds - mean)
            return
        tokens = sequences + drafted
        self._count = self._count * _FADE + 1
        self._t = self._t * _FADE + tokens
        self._tt = self._tt * _FADE + tokens * tokens
        self._s = self._s * _FADE + seconds
        self._ts = self._ts * _FADE + tokens * seconds

    def plain_known(self, sequences: int) -> bool:
        return self._plain.get(sequences, (0, 0.0))[0] >= _ENOUGH

    def _line(self) -> tuple[float, float] | None:
        """(seconds of a step, seconds of a token)."""
        if self._count < _ENOUGH:
            return None
        spread = self._count * self._tt - self._t * self._t
        mean = self._s / self._count
        if spread < 1e-6 * self._tt * self._count:  # always the same number of tokens
            return 0.0, mean / (self._t / self._count)
        slope = max(0.0, (self._count * self._ts - self._t * self._s) / spread)
        return max(0.0, mean - slope * self._t / self._count), slope

    def token_share(self, sequences: int) -> float | None:
        """The tokens that a plain step makes in the time which one more guess costs."""
        line = self._line()
        if line is None or not self.plain_known(sequences):
            return None
        share = line[1] * sequences / self._plain[sequences][1]
        return min(max(share, _LEAST_SHARE), 1.0)

    def loses(self, sequences: int, drafted: int, expected: float) -> bool:
        """Whether a step with so many guesses, that should make `expected` tokens, is slower."""
        line = self._line()
        if line is None or not self.plain_known(sequences):
            return False
        fixed, each = line
        with_guesses = expected / max(fixed + each * (sequences + drafted), 1e-9)
        return with_guesses < _PROFIT * sequences / self._plain[sequences][1]
