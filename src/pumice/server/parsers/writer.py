"""Events out of a tool parser's decisions: white space around calls, indexes, identifiers."""

from __future__ import annotations

from collections.abc import Callable

from pumice.server.parsers.events import ContentDelta, Event, ToolCallArguments, ToolCallStart


class Writer:
    """White space that touches a call belongs to the markup and not to the text: it is held until
    it is known what follows, and kept only where it parts text from text.
    """

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._events: list[Event] = []
        self._space = ""  # after the text so far
        self._gap = ""  # after the last call
        self._after_call = False
        self._has_content = False
        self.calls = 0

    def content(self, text: str) -> None:
        """Adds text."""
        if self._after_call:
            rest = text.lstrip()
            self._gap += text[: len(text) - len(rest)]
            if not rest:
                return
            self._space = (self._space or self._gap) if self._has_content else ""
            self._gap = ""
            self._after_call = False
            text = rest
        shown = text.rstrip()
        if shown:
            self._events.append(ContentDelta(self._space + shown))
            self._space = text[len(shown) :]
            self._has_content = True
        else:
            self._space += text

    def start(self, name: str) -> int:
        """Begins a call; returns its index."""
        self._after_call = True
        self._gap = ""
        index = self.calls
        self.calls += 1
        self._events.append(ToolCallStart(index, self._new_id(), name))
        return index

    def arguments(self, index: int, fragment: str) -> None:
        """Adds to a call's arguments."""
        if fragment:
            self._events.append(ToolCallArguments(index, fragment))

    def take(self) -> list[Event]:
        """What was added since the last time."""
        events, self._events = self._events, []
        return events

    def finish(self) -> list[Event]:
        """The same, and white space that nothing followed."""
        if self._space and not self._after_call:
            self._events.append(ContentDelta(self._space))
            self._space = ""
        return self.take()
