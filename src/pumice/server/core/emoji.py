"""Emoji stream whole: a sequence that may go on is held until it is known that it does not.

A family is four people and three joiners, and comes as several tokens; a reader who is shown its
parts sees four people first. Sequences: Unicode Technical Standard 51, "Unicode Emoji".
"""

from __future__ import annotations

import re

_PICTURE = (
    "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u27bf\u2934\u2935"
    "\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001f1e5\U0001f200-\U0001faff]"
)
_JOINER = "\u200d"
# Variation selector, keycap, skin tones, and the tags of subdivisions' flags.
_MORE = "[\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]"
_END = re.compile(f"{_PICTURE}{_MORE}*(?:{_JOINER}{_PICTURE}{_MORE}*)*{_JOINER}?$")
_FLAGS = re.compile("[\U0001f1e6-\U0001f1ff]+$")
_LONGEST = 40  # characters; a longer "sequence" is none


class WholeEmoji:
    """Text in pieces → the same text, not cut within a sequence."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """What is certainly whole."""
        if not self._held and text.isascii():
            return text
        whole = self._held + text
        keep = _open(whole)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def finish(self) -> str:
        """The rest."""
        held, self._held = self._held, ""
        return held


def _open(text: str) -> int:
    """How many characters at the end may be the beginning of something longer."""
    tail = text[-_LONGEST:]
    flags = _FLAGS.search(text)
    if flags:
        return len(flags[0]) % 2  # two letters are a flag, which nothing makes longer
    found = _END.search(tail)
    if found is None or (found.start() == 0 and len(text) > _LONGEST):
        return 0
    return len(found[0])
