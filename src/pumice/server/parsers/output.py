"""A model's output in pieces → events: first reasoning, then tool calls."""

from __future__ import annotations

from pumice.server.parsers.events import ContentDelta, Event, ReasoningDelta
from pumice.server.parsers.reasoning import ReasoningFilter
from pumice.server.parsers.tool_parser import ToolParser


class OutputParser:
    """One output. What the events add up to (`events.collect`) does not depend on the pieces."""

    def __init__(self, reasoning: ReasoningFilter, tools: ToolParser | None) -> None:
        """tools: None leaves calls in the content."""
        self._reasoning = reasoning
        self._tools = tools

    def push(self, text: str) -> list[Event]:
        """The events that more text makes certain; none is taken back later."""
        return self._events(*self._reasoning.push(text))

    def finish(self) -> list[Event]:
        """The last events, once: no more text will come. What was held back is text after all."""
        events = self._events(*self._reasoning.finish())
        return events + (self._tools.finish() if self._tools else [])

    def _events(self, reasoning: str, content: str) -> list[Event]:
        events: list[Event] = [ReasoningDelta(reasoning)] if reasoning else []
        if content:
            events += self._tools.push(content) if self._tools else [ContentDelta(content)]
        return events
