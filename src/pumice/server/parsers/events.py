"""What a model's output consists of, in the order in which it is said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class ContentDelta:
    """Text for the reader."""

    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    """Text of the model's own thinking."""

    text: str


@dataclass(frozen=True)
class ToolCallStart:
    """A call begins. index: 0, 1, … in the order of the output, whatever the function."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True)
class ToolCallArguments:
    """More of a call's arguments: a fragment of one JSON object's text."""

    index: int
    fragment: str


Event: TypeAlias = ContentDelta | ReasoningDelta | ToolCallStart | ToolCallArguments


@dataclass(frozen=True)
class ToolCall:
    """A whole call. arguments: a JSON object, as text."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """A whole output: what the answer without streaming carries."""

    content: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]


def collect(events: Iterable[Event]) -> Message:
    """Adds deltas up, as a client of the stream does."""
    content: list[str] = []
    reasoning: list[str] = []
    starts: list[ToolCallStart] = []
    arguments: list[list[str]] = []
    for event in events:
        match event:
            case ContentDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallStart():
                starts.append(event)
                arguments.append([])
            case ToolCallArguments(index, fragment):
                arguments[index].append(fragment)
    return Message(
        "".join(content),
        "".join(reasoning),
        tuple(
            ToolCall(start.call_id, start.name, "".join(parts))
            for start, parts in zip(starts, arguments, strict=True)
        ),
    )
