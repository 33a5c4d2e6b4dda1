"""What the families of tool calls have in common: finding where a call may begin, and what becomes
of text that was none.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from pumice.server.parsers.events import Event
from pumice.server.parsers.json_reader import read_value
from pumice.server.parsers.source import Broken, EndOfText, Reading, Source
from pumice.server.parsers.writer import Writer

_OBJECT = re.compile(r"\{")
_LINE_OBJECT = re.compile(r"\n[ \t]*([{\[])")
_FIRST_OBJECT = re.compile(r"[ \t]*([{\[])")


class ToolParser(ABC):
    """Text in pieces → events. A family says what may open a call, and reads one.

    The text between `self.mark` and the position has not become an event yet. When reading fails,
    it becomes content, a first bit of it at once; the rest is searched for calls again: a call
    that is broken spoils no other.

    Without `eager`, a call is told when it is whole, so that a broken one can still become
    content. With it, its arguments are told as they are read; right when a grammar makes sure that
    they are JSON, and only an early end can leave them unfinished.
    """

    # What begins a call → what ends it, or None. No key may begin another.
    MARKERS: ClassVar[Mapping[str, str | None]] = {}
    # An object or array at the beginning of a line may be a call, too.
    BARE: ClassVar[bool] = False

    def __init__(
        self, tools: Mapping[str, Mapping[str, Any]], new_id: Callable[[], str], *, eager: bool
    ) -> None:
        """tools: name → JSON Schema of its arguments."""
        self.tools = tools
        self.eager = eager
        self.source = Source()
        self.source.before_wait = self._hand_out
        self.writer = Writer(new_id)
        self.mark = 0
        self.objects_anywhere = False  # in the rest of an array that holds something broken
        self._live: tuple[int, int] | None = None  # (call, position of what is not told yet)
        self._line_is_blank = True
        self.closing: str | None = None  # a marker that ends what calls there were, if it comes
        self._run = self._read_all()
        next(self._run)

    def push(self, text: str) -> list[Event]:
        """The events that more text makes certain."""
        if text:
            self.source.text += text
            next(self._run)
        return self.writer.take()

    def finish(self) -> list[Event]:
        """The last events: no more text will come."""
        self.source.closed = True
        for _ in self._run:
            raise AssertionError("a reader waits for text that will not come")
        return self.writer.finish()

    @abstractmethod
    def section(self, opening: str) -> Reading[None]:
        """Reads a call, or several, from `opening` on. What follows `self.mark` at the end is read
        as content.
        """

    # For families.

    def read_arguments(self, name: str) -> Reading[None]:
        """Reads a call's arguments, a JSON object, when its name was before."""
        if (yield from self.source.skip_space()) != "{":
            raise Broken("arguments that are no object")
        begin = self.source.position
        if name in self.tools and self.eager:
            yield from self.read_live(name)
            return
        yield from read_value(self.source)
        self.finish_call(name, self.source.text[begin : self.source.position])

    def read_live(self, name: str) -> Reading[None]:
        """Reads a JSON object and tells it as it comes as the arguments of a new call."""
        self._live = (self.writer.start(name), self.source.position)
        yield from read_value(self.source)
        self._hand_out()
        self._live = None
        self.mark = self.source.position

    def finish_call(self, name: object, arguments: str | None) -> None:
        """A call has been read. If there is no such tool, or if the arguments are no object, it is
        content as it stands.
        """
        if isinstance(name, str) and name in self.tools and arguments is not None:
            self.writer.arguments(self.writer.start(name), arguments)
        else:
            self._content(self.source.text[self.mark : self.source.position])
        self.mark = self.source.position

    def read_closing(self, closing: str | None, calls_before: int) -> Reading[None]:
        """Reads the end of a section that began when there were `calls_before` calls. If they are
        still as many, the section was content, and so is its end.
        """
        if closing is None or self.writer.calls == calls_before:
            return
        try:
            yield from self.source.skip_space()
            if (yield from self.source.accept(closing)):
                self.mark = self.source.position
            else:
                self.closing = closing
        except EndOfText:  # the end may be cut off, and then is not shown
            rest = self.source.text[self.mark :].lstrip()
            if closing.startswith(rest):
                self.mark = len(self.source.text)

    # How it works.

    def _read_all(self) -> Reading[None]:
        yield  # until there is text
        while True:
            try:
                opening = yield from self._read_content()
            except EndOfText:
                return
            try:
                yield from self.section(opening)
            except Broken as fault:
                self._give_up(opening, fault)
            self.source.position = self.mark

    def _read_content(self) -> Reading[str]:
        """Tells content up to the next thing that may be a call; returns what it begins with,
        unread.
        """
        source = self.source
        while True:
            source.drop(source.position)
            start, opening = self._find()
            if opening is None:
                start = len(source.text) if source.closed else self._certain()
            self._content(source.text[:start])
            source.position = self.mark = start
            if opening is None:
                yield from source.wait()
                continue
            if opening != self.closing:
                if opening in self.MARKERS:
                    self.closing = None
                    self.objects_anywhere = False
                return opening
            self.closing = None
            source.position = self.mark = start + len(opening)

    def _find(self) -> tuple[int, str | None]:
        """Where the text may go on with a call, and the marker or bracket there."""
        text = self.source.text
        matches = [_pattern((*self.MARKERS, self.closing)).search(text)]
        if self.BARE:
            if self._line_is_blank:
                matches.append(_FIRST_OBJECT.match(text))
            matches.append(_LINE_OBJECT.search(text))
        if self.objects_anywhere:
            matches.append(_OBJECT.search(text))
        places = [(m.start(m.lastindex or 0), m[m.lastindex or 0]) for m in matches if m]
        return min(places) if places else (0, None)

    def _certain(self) -> int:
        """How much of the text is certainly no part of a marker."""
        text = self.source.text
        markers = [*self.MARKERS, *([self.closing] if self.closing else [])]
        longest = max(map(len, markers), default=1) - 1
        earliest = max(0, len(text) - longest)
        starts = [text.find(marker[0], earliest) for marker in markers]
        for start in range(min((s for s in starts if s >= 0), default=len(text)), len(text)):
            if any(marker.startswith(text[start:]) for marker in markers):
                return start
        return len(text)

    def _content(self, text: str) -> None:
        if text:
            self.writer.content(text)
            line = text.rpartition("\n")
            self._line_is_blank = (bool(line[1]) or self._line_is_blank) and not line[2].strip(
                " \t"
            )

    def _hand_out(self) -> None:
        if self._live is not None:
            index, begin = self._live
            self.writer.arguments(index, self.source.text[begin : self.source.position])
            self._live = (index, self.source.position)

    def _give_up(self, opening: str, fault: Broken) -> None:
        source = self.source
        if self._live is not None:  # told already, up to here
            if isinstance(fault, EndOfText):
                source.position = len(source.text)
            self._hand_out()
            self._live = None
            self.mark = source.position
            return
        whole = source.text.startswith(opening, self.mark)
        end = min(self.mark + (len(opening) if whole else 1), len(source.text))
        self._content(source.text[self.mark : end])
        self.mark = end


@lru_cache(maxsize=64)
def _pattern(literals: tuple[str | None, ...]) -> re.Pattern[str]:
    # A pattern without alternatives would match everywhere.
    return re.compile("|".join(re.escape(text) for text in literals if text) or r"(?!)")


def decode_arguments(text: str | None) -> str | None:
    """The value of an "arguments" member → a JSON object's text, or None if it is none. Some models
    write the object into a string, as OpenAI's protocol does.
    """
    if text is None or text == "null":
        return "{}"
    if text.startswith('"'):
        text = str(json.loads(text)).strip()
        try:
            value = json.loads(text, parse_constant=refuse_constant)
        except ValueError:
            return None
        if any("\ud800" <= character <= "\udfff" for character in text):
            text = json.dumps(value)  # half a surrogate pair can only be sent as an escape
    return text if text.startswith("{") else None


def refuse_constant(constant: str) -> None:
    """For `json.loads`: NaN and Infinity are Python's, not JSON's."""
    raise ValueError(f"{constant} is no JSON")
