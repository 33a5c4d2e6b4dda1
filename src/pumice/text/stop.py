"""Finding stop strings in text that arrives in pieces.

Every stop string has a Knuth-Morris-Pratt automaton, so a character costs the same however long
the strings are and however the text was cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from pumice.errors import UsageError


class StopMatcher:
    """Feeds on text and says how much of it may be shown.

    The string that is complete first wins; of several that end together, the longest. `matched`
    is that string, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """UsageError when a stop string is empty or there is a bare string in place of a list."""
        if isinstance(stops, str):
            raise UsageError(f"stop strings are a list of strings; got the string {stops!r}")
        if any(not isinstance(stop, str) or not stop for stop in stops):
            raise UsageError(f"stop strings must be strings and not empty; got {list(stops)!r}")
        # The longest first: of several that end at one character, that one is found first.
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._failures = [_failure(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._held = ""  # text that may be the beginning of a stop string
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Takes text, returns what is certainly not part of a stop string. After a match:
        nothing.
        """
        if self.matched is not None or not text:
            return ""
        if not self._stops:
            return text
        for position, character in enumerate(text):
            for index, stop in enumerate(self._stops):
                state, failure = self._states[index], self._failures[index]
                while state and stop[state] != character:
                    state = failure[state - 1]
                if stop[state] == character:
                    state += 1
                if state == len(stop):
                    self.matched = stop
                    shown = self._held + text[: position + 1]
                    self._held = ""
                    return shown[: -len(stop)]
                self._states[index] = state
        whole = self._held + text
        keep = max(self._states)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def finish(self) -> str:
        """The text that was held and turned out to begin no stop string."""
        held, self._held = self._held, ""
        return held


def _failure(pattern: str) -> list[int]:
    """failure[i]: length of the longest proper prefix of pattern[: i + 1] that is also its
    suffix.
    """
    failure = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = failure[length - 1]
        if pattern[i] == pattern[length]:
            length += 1
        failure[i] = length
    return failure
