"""One output of a job on its way: from the engine's deltas to events, with its stop strings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pumice.server.core.emoji import WholeEmoji
from pumice.server.parsers.events import ContentDelta, Event, ReasoningDelta, ToolCallStart
from pumice.text.stop import StopMatcher


class OutputParser(Protocol):
    """Tells content, reasoning and calls apart, however the text is cut."""

    def push(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


class PlainParser:
    """All of the text is content."""

    def push(self, text: str) -> list[Event]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Event]:
        return []


class Choice:
    """Stop strings are looked for in the content alone: reasoning may hold them.

    stopped_by: the stop string that was met, after which nothing comes. tool_calls: how many began.
    one_call: the second call, and what follows it, is left out. hidden: pieces of content that are
    control tokens.
    """

    def __init__(
        self,
        parser: OutputParser,
        stop: Iterable[str],
        *,
        one_call: bool,
        hidden: frozenset[str] = frozenset(),
    ) -> None:
        self._parser = parser
        self._stop = list(stop)
        self._matcher = StopMatcher(self._stop)
        self._emoji = WholeEmoji()
        self._one_call = one_call
        self._hidden = hidden
        self._done = False
        self.tool_calls = 0
        self.reasoning_tokens = 0
        self._unsure_tokens = 0

    @property
    def stopped_by(self) -> str | None:
        return self._matcher.matched

    @property
    def done(self) -> bool:
        """Nothing more will come, whatever the model goes on to say."""
        return self._done or self._matcher.matched is not None

    def push(self, text: str, tokens: int = 0) -> list[Event]:
        if self.done:
            return []
        events = self._parser.push(text)
        self._count(events, tokens)
        return self._pass(events)

    def finish(self) -> list[Event]:
        """What was held back."""
        if self.done:
            return []
        events = self._pass(self._parser.finish())
        return events if self.done else events + self._flush()

    def _pass(self, events: list[Event]) -> list[Event]:
        passed: list[Event] = []
        for event in events:
            if self.done:
                break
            if isinstance(event, ContentDelta):
                text = self._emoji.push(self._matcher.push(self._visible(event.text)))
                if self._matcher.matched is not None:
                    text += self._emoji.finish()
                if text:
                    passed.append(ContentDelta(text))
                continue
            if isinstance(event, ToolCallStart):
                if self._one_call and self.tool_calls:
                    passed += self._flush()
                    self._done = True
                    break
                self.tool_calls += 1
                passed += self._flush()
                self._matcher = StopMatcher(self._stop)  # a stop string does not reach over a call
            passed.append(event)
        return passed

    def _flush(self) -> list[Event]:
        """Text that was held and turned out to be no beginning."""
        rest = self._emoji.push(self._matcher.finish()) + self._emoji.finish()
        return [ContentDelta(rest)] if rest else []

    def _visible(self, text: str) -> str:
        for token in self._hidden:
            if token in text:
                text = text.replace(token, "")
        return text

    def _count(self, events: list[Event], tokens: int) -> None:
        self._unsure_tokens += tokens
        if not events:
            return
        if all(isinstance(event, ReasoningDelta) for event in events):
            self.reasoning_tokens += self._unsure_tokens
        self._unsure_tokens = 0
