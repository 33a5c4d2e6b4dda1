"""Text that arrives in pieces, read by generators that wait for more.

A parser here is an ordinary recursive-descent parser written as a generator: it yields when it has
read all text that is there, and goes on where it stood when there is more. Nothing it decides can
depend on where the text was cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Reading: TypeAlias = Generator[None, None, T]

_SPACE = re.compile(r"[ \t\r\n]*")


class Broken(Exception):
    """The text is not what the parser reads."""


class EndOfText(Broken):
    """The text ended in the middle."""


class Source:
    """The text, how far it was read, and whether more may come.

    before_wait: called each time before the reader waits, to hand out what is certain.
    """

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.closed = False
        self.before_wait: Callable[[], None] | None = None

    def wait(self) -> Reading[None]:
        """Returns when there is more text. EndOfText when there will be none."""
        if self.closed:
            raise EndOfText
        if self.before_wait is not None:
            self.before_wait()
        yield

    def drop(self, before: int) -> None:
        """Forgets the text before a position that was read; positions move down by it."""
        self.text = self.text[before:]
        self.position -= before

    def peek(self) -> Reading[str]:
        """The next character, unread."""
        while self.position >= len(self.text):
            yield from self.wait()
        return self.text[self.position]

    def skip_space(self) -> Reading[str]:
        """Reads JSON's white space; returns the character after it, unread."""
        while True:
            match = _SPACE.match(self.text, self.position)
            assert match is not None  # it matches nothing, too
            self.position = match.end()
            if self.position < len(self.text):
                return self.text[self.position]
            yield from self.wait()

    def accept(self, literal: str) -> Reading[bool]:
        """Reads `literal` if it comes next; else reads nothing and returns False."""
        while True:
            part = self.text[self.position : self.position + len(literal)]
            if part == literal:
                self.position += len(literal)
                return True
            if not literal.startswith(part):
                return False
            yield from self.wait()

    def expect(self, literal: str) -> Reading[None]:
        """Reads `literal`; Broken if something else comes."""
        if not (yield from self.accept(literal)):
            raise Broken(literal)

    def until(self, literal: str, *, limit: int | None = None) -> Reading[str]:
        """Reads up to and including `literal`; returns what stands before it. Broken after `limit`
        characters without it.
        """
        start = self.position
        searched = start
        while True:
            found = self.text.find(literal, searched)
            end = len(self.text) - len(literal) + 1 if found < 0 else found
            if limit is not None and end - start > limit:
                raise Broken(f"no {literal!r} in {limit} characters")
            if found >= 0:
                self.position = found + len(literal)
                return self.text[start:found]
            searched = max(start, end)
            yield from self.wait()
