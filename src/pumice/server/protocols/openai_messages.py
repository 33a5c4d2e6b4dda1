"""OpenAI's messages, as a model's template takes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pumice.server.context import ServerContext
from pumice.server.core.job import Message
from pumice.server.errors import ApiError, bad_request, unsupported
from pumice.server.protocols.fields import Fields


class ContentPart(Fields):
    """Of a text model only texts can be used."""

    type: Literal["text", "refusal", "image_url", "input_audio", "file"]
    text: str | None = None
    refusal: str | None = None
    image_url: dict[str, Any] | None = None
    input_audio: dict[str, Any] | None = None
    file: dict[str, Any] | None = None


class CalledFunction(Fields):
    name: str
    arguments: str


class ToolCall(Fields):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class ChatMessage(Fields):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    # What the official client sends back of an answer, always empty here:
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


def messages_of(context: ServerContext, messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """400 for a message that lacks what its role needs, or holds what is no text."""
    if not messages:
        raise bad_request("messages is empty; at least one is needed", "messages")
    names: dict[str, str] = {}
    return tuple(
        _message(context, message, f"messages[{i}]", names) for i, message in enumerate(messages)
    )


def _message(
    context: ServerContext, message: ChatMessage, where: str, names: dict[str, str]
) -> Message:
    role = message.role
    made: Message = {"role": _role(context, role)}
    if role == "assistant":
        text = text_of(context, message.content, where)
        made["content"] = text or message.refusal or ""
        if message.reasoning_content:
            made["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            made["tool_calls"] = [tool_call(c.id, c.function.name, c.function.arguments)
                                  for c in message.tool_calls]  # fmt: skip
            names.update({c.id: c.function.name for c in message.tool_calls})
        elif message.content is None and not message.refusal:
            raise bad_request(f"{where} has neither content nor tool_calls", where)
        return made
    if message.tool_calls:
        raise bad_request(f"{where} has tool_calls; only an assistant's may", where)
    if message.content is None:
        raise bad_request(f"{where} has no content", f"{where}.content")
    made["content"] = text_of(context, message.content, where)
    if role == "tool":
        if not message.tool_call_id:
            raise bad_request(f"{where} has no tool_call_id", f"{where}.tool_call_id")
        made["tool_call_id"] = message.tool_call_id
        name = message.name or names.get(message.tool_call_id)
        if name:
            made["name"] = name
    elif message.name:
        made["name"] = message.name
    return made


def _role(context: ServerContext, role: str) -> str:
    """`developer` is `system`, unless the template knows it."""
    template = context.template
    if role == "developer" and not (template and "developer" in template.source):
        return "system"
    return role


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """As templates take it: arguments are an object. A text that is none stays a text."""
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        parsed = arguments
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": parsed if isinstance(parsed, dict) else arguments},
    }


def text_of(context: ServerContext, content: str | Sequence[ContentPart] | None, where: str) -> str:
    """The parts' texts, a line each."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for i, part in enumerate(content):
        place = f"{where}.content[{i}]"
        if part.type == "image_url":
            check_image(context, (part.image_url or {}).get("url"), place)
        if part.type not in ("text", "refusal"):
            raise unsupported(place, f"{context.name} reads text only, no {part.type}")
        text = part.text if part.type == "text" else part.refusal
        if text is None:
            raise bad_request(f"{place} has no {part.type}", place)
        texts.append(text)
    return "\n".join(texts)


def check_image(context: ServerContext, url: Any, where: str) -> None:
    """413 for an image's link or data that is too long."""
    limit = context.settings.max_image_url
    if isinstance(url, str) and len(url) > limit:
        raise ApiError(
            413, f"{where} holds an image of {len(url):,} characters; {limit:,} are allowed",
            param=where,
        )  # fmt: skip
