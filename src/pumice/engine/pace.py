"""How many tokens of prompts a step may hold, so that running streams keep their pace.

The chunk is chosen from measured times so that it and the decoded tokens take `STRETCH` times as
long as those alone: the time between two tokens of a running stream is then bounded by that,
whatever arrives (the stall-free batching of Agrawal et al., "Sarathi-Serve", 2024, with the token
budget measured rather than configured).

A step with prompts costs a part that is fixed and one for each token. On a GPU the fixed part alone
can be longer than what streams were promised: chunks are then so long that as much time again goes
into their tokens. Shorter ones would hold every stream up for longer, and the prompt for ever.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median_low

STRETCH = 2.2  # of a decoding step's time; the promise is 3, and steps vary
_FIRST = 32  # tokens, before anything was measured
_LEAST = 2  # tokens: a prompt must go on whatever it costs
_SHARE = 0.3  # of a new measurement in the running mean
# A step that was held up says little about the next one, and may not make chunks longer: a decoding
# step counts for so many times the mean at most, a token of a prompt for such a part at least.
_HELD_UP = 1.5
_UNLIKE = 1.5  # times as many tokens: two steps that tell the fixed part from that of tokens
_PAIRS = 5  # of such steps, the last ones, whose median counts
_FADE = 0.97  # of the fixed part with each step that says nothing of it, so that it is tried again
_MOST_FIXED = 0.9  # of a step


class Pace:
    """Measured seconds of steps.

    mixed: prompts ride in steps that decode, too, rather than in steps of their own. sizes: numbers
    of tokens that a step with prompts is padded to, in order; empty when it is not.
    """

    def __init__(self, max_tokens: int, *, mixed: bool = False, sizes: Sequence[int] = ()) -> None:
        self._max_tokens = max_tokens
        self._mixed = mixed
        self._sizes = sizes
        self._decode_s: dict[int, float] = {}  # decoded tokens → a step of only those
        self._token_s = 0.0  # that a token of a prompt adds to a step, the fixed part shared
        self._fixed_s = 0.0  # that prompts add to a step before their first token
        self._seen: tuple[int, float] | None = None  # the last step's tokens of prompts, seconds
        self._fixed_parts: deque[float] = deque(maxlen=_PAIRS)
        self._tokens = self._added_s = 0.0  # means of the steps with prompts

    def chunk(self, decode_tokens: int) -> int:
        """Tokens of prompts for a step that decodes so many, or for one between two that do."""
        decode_s = self._decode_time(decode_tokens)
        if not decode_s or not self._token_s:
            return min(_FIRST, self._max_tokens)
        # A step has a fixed cost too, so one token more costs less than the mean: rounded up.
        most = math.ceil((STRETCH - 1) * decode_s / self._token_s)
        fixed_s = min(self._fixed_s, _MOST_FIXED * self._added_s)
        worth = math.ceil(fixed_s / (self._added_s - fixed_s) * self._tokens)
        beside = decode_tokens if self._mixed else 0
        count = self._padded(max(most, worth, _LEAST) + beside) - beside
        return min(count, self._max_tokens)

    def observe(self, decode_tokens: int, prefill_tokens: int, seconds: float) -> None:
        """A step of so many tokens took `seconds`."""
        if prefill_tokens:
            if not decode_tokens:
                self._observe_prompts(self._padded(prefill_tokens), seconds)
            elif self._token_s:
                added = max(seconds - self._decode_time(decode_tokens), 0.1 * seconds)
                tokens = self._padded(decode_tokens + prefill_tokens) - decode_tokens
                self._observe_prompts(tokens, added)
            return
        before = self._decode_s.get(decode_tokens, 0.0)
        most = _HELD_UP * before if before else seconds
        self._decode_s[decode_tokens] = _mean(before, min(seconds, most))

    def _observe_prompts(self, tokens: int, seconds: float) -> None:
        self._token_s = _mean(self._token_s, max(seconds / tokens, self._token_s / _HELD_UP))
        self._tokens = _mean(self._tokens, tokens)
        self._added_s = _mean(self._added_s, seconds)
        before, self._seen = self._seen, (tokens, seconds)
        if before is None:
            return
        (few, short), (many, long) = sorted((before, self._seen))
        if many < _UNLIKE * few:
            self._fixed_s *= _FADE
            return
        each = max(long - short, 0.0) / (many - few)
        self._fixed_parts.append(max(short - each * few, 0.0))
        self._fixed_s = median_low(self._fixed_parts)

    def _padded(self, tokens: int) -> int:
        return next((size for size in self._sizes if size >= tokens), tokens)

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
