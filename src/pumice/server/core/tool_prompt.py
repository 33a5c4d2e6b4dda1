"""Tools for templates that know none: they are described in the system message, and calls and their
results are told as text, as `parsers`' generic family reads them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pumice.server.core.job import Message

_HEAD = """You can call these functions, given as JSON Schema, one a line:
"""
_BARE = """
To call one, answer with nothing but a JSON object:
{"name": "<function>", "arguments": {<its arguments>}}
For several calls, write one object a line. Otherwise answer in words."""
_TAGGED = """
To call one, answer with nothing but a JSON object in tags, several one after the other:
<tool_call>
{"name": "<function>", "arguments": {<its arguments>}}
</tool_call>
Otherwise answer in words."""


def knows_tools(template: str) -> bool:
    """Whether a template (Jinja) shows tools to the model."""
    return "tools" in template


def knows_calls(template: str) -> bool:
    """Whether a template tells an assistant's earlier calls."""
    return "tool_calls" in template


def describe(
    messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, tagged: bool
) -> list[Message]:
    """The conversation with the tools in its system message. tagged: calls as Hermes writes them,
    which a grammar can enforce; else as the generic parser takes them.
    """
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = f"{_HEAD}{lines}{_TAGGED if tagged else _BARE}"
    if messages and messages[0]["role"] == "system":
        first = messages[0]
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def spell_out(messages: Sequence[Message]) -> list[Message]:
    """Calls as the objects that they were, results as messages of the user."""
    told: list[Message] = []
    for message in messages:
        if message.get("tool_calls"):
            calls = "\n".join(
                json.dumps(
                    {k: call["function"][k] for k in ("name", "arguments")}, ensure_ascii=False
                )
                for call in message["tool_calls"]
            )
            text = "\n".join(part for part in (message["content"], calls) if part)
            told.append({"role": "assistant", "content": text})
        elif message["role"] == "tool":
            name = message.get("name") or message.get("tool_call_id", "")
            told.append({"role": "user", "content": f"Result of {name}: {message['content']}"})
        else:
            told.append(message)
    return told
