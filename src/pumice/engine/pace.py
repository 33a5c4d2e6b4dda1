"""How many tokens of prompts a step may hold, so that running streams keep their pace.

A step with part of a prompt beside decoded tokens takes longer than one that only decodes. The
chunk is chosen from measured times so that it takes `STRETCH` times as long: the time between two
tokens of a running stream is then bounded by that, whatever arrives (the stall-free batching of
Agrawal et al., "Sarathi-Serve", 2024, with the token budget measured rather than configured).
"""

from __future__ import annotations

STRETCH = 2.4  # of a decoding step's time; the promise is 3, and steps vary
_FIRST = 32  # tokens, before anything was measured
_LEAST = 8  # tokens: a prompt must go on whatever it costs
_SHARE = 0.3  # of a new measurement in the running mean


class Pace:
    """Means of recent measurements, seconds."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._decode_s = 0.0  # of a step that decodes only
        self._token_s = 0.0  # that a token of a prompt adds to a step

    def chunk(self) -> int:
        """Tokens of prompts for a step that decodes too."""
        if not self._decode_s or not self._token_s:
            return min(_FIRST, self._max_tokens)
        most = (STRETCH - 1) * self._decode_s / self._token_s
        return int(min(max(most, _LEAST), self._max_tokens))

    def observe(self, decode_tokens: int, prefill_tokens: int, seconds: float) -> None:
        """A step of so many tokens took `seconds`."""
        if not prefill_tokens:
            self._decode_s = _mean(self._decode_s, seconds)
        elif not decode_tokens:
            self._token_s = _mean(self._token_s, seconds / prefill_tokens)
        elif self._decode_s:
            added = max(seconds - self._decode_s, 0.1 * seconds)
            self._token_s = _mean(self._token_s, added / prefill_tokens)


def _mean(before: float, now: float) -> float:
    return before + _SHARE * (now - before) if before else now
