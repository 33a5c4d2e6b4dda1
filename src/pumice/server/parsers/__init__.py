"""What a model writes → content, reasoning and tool calls, while it is written."""

from pumice.server.parsers.events import (
    ContentDelta,
    Event,
    Message,
    ReasoningDelta,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
    collect,
)
from pumice.server.parsers.families import Family, choose_family, make_parser
from pumice.server.parsers.output import OutputParser
from pumice.server.parsers.reasoning import Reasoning, choose_reasoning

__all__ = [
    "ContentDelta",
    "Event",
    "Family",
    "Message",
    "OutputParser",
    "Reasoning",
    "ReasoningDelta",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallStart",
    "choose_family",
    "choose_reasoning",
    "collect",
    "make_parser",
]
