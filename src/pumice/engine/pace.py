"""How many tokens of prompts a step may hold, so that running streams keep their pace.

The chunk is chosen from measured times so that it and the decoded tokens take `STRETCH` times as
long as those alone: the time between two tokens of a running stream is then bounded by that,
whatever arrives (the stall-free batching of Agrawal et al., "Sarathi-Serve", 2024, with the token
budget measured rather than configured).
"""

from __future__ import annotations

import math

STRETCH = 2.2  # of a decoding step's time; the promise is 3, and steps vary
_FIRST = 32  # tokens, before anything was measured
_LEAST = 2  # tokens: a prompt must go on whatever it costs
_SHARE = 0.3  # of a new measurement in the running mean
# A step that was held up says little about the next one, and may not make chunks longer: a decoding
# step counts for so many times the mean at most, a token of a prompt for such a part at least.
_HELD_UP = 1.5


class Pace:
    """Running means of measurements, seconds."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._decode_s: dict[int, float] = {}  # decoded tokens → a step of only those
        self._token_s = 0.0  # that a token of a prompt adds to a step

    def chunk(self, decode_tokens: int) -> int:
        """Tokens of prompts for a step that decodes so many."""
        decode_s = self._decode_time(decode_tokens)
        if not decode_s or not self._token_s:
            return min(_FIRST, self._max_tokens)
        # A step has a fixed cost too, so one token more costs less than the mean: rounded up.
        most = math.ceil((STRETCH - 1) * decode_s / self._token_s)
        return min(max(most, _LEAST), self._max_tokens)

    def observe(self, decode_tokens: int, prefill_tokens: int, seconds: float) -> None:
        """A step of so many tokens took `seconds`."""
        if not prefill_tokens:
            before = self._decode_s.get(decode_tokens, 0.0)
            most = _HELD_UP * before if before else seconds
            self._decode_s[decode_tokens] = _mean(before, min(seconds, most))
        elif not decode_tokens:
            self._observe_token(seconds / prefill_tokens)
        elif self._token_s:
            added = max(seconds - self._decode_time(decode_tokens), 0.1 * seconds)
            self._observe_token(added / prefill_tokens)

    def _observe_token(self, seconds: float) -> None:
        self._token_s = _mean(self._token_s, max(seconds, self._token_s / _HELD_UP))

    def _decode_time(self, tokens: int) -> float:
        """Of a step that only decodes. Under load there may be none of this size to measure: then
        a decoded token more is taken to cost what one of a prompt does. 0 when nothing is known.
        """
        known = self._decode_s
        if tokens in known or not known:
            return known.get(tokens, self._token_s * tokens)
        near = min(known, key=lambda size: abs(size - tokens))
        return max(known[near] + (tokens - near) * self._token_s, known[near] / 2)


def _mean(before: float, now: float) -> float:
    return before + _SHARE * (now - before) if before else now
