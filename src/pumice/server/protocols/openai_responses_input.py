"""The input of `/v1/responses`: items, as messages of a model's template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import ConfigDict, Field

from pumice.server.context import ServerContext
from pumice.server.core.job import Message
from pumice.server.errors import bad_request, unsupported
from pumice.server.protocols.fields import Fields
from pumice.server.protocols.openai_messages import check_image, tool_call


class InputPart(Fields):
    type: Literal["input_text", "output_text", "refusal", "input_image", "input_file", "text"]
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    detail: str | None = None
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputItem(Fields):
    """A message, a call, a call's output, or reasoning: what answers consist of may come back."""

    model_config = ConfigDict(populate_by_name=True)

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[InputPart] | list[dict[str, Any]] | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    summary: list[dict[str, Any]] | None = None
    encrypted_content: None = None
    namespace: None = None
    caller: None = None
    async_: None = Field(None, alias="async")


def messages_of_input(
    context: ServerContext, given: str | Sequence[InputItem], before: Sequence[Message]
) -> tuple[Message, ...]:
    """The messages before, and those of the input. Calls join the assistant's message that they
    follow. 400 for an item that lacks what its type needs.
    """
    messages = list(before)
    if isinstance(given, str):
        return (*messages, {"role": "user", "content": given})
    names = {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls", ())
    }
    reasoning = ""
    for i, item in enumerate(given):
        where = f"input[{i}]"
        if item.type == "reasoning":
            reasoning = _reasoning(item)
            continue
        if item.type == "function_call":
            if not (item.call_id and item.name) or item.arguments is None:
                raise bad_request(f"{where} needs call_id, name and arguments", where)
            message = _assistant(messages, new=bool(reasoning))
            message.setdefault("tool_calls", []).append(
                tool_call(item.call_id, item.name, item.arguments)
            )
            names[item.call_id] = item.name
        elif item.type == "function_call_output":
            if not item.call_id or item.output is None:
                raise bad_request(f"{where} needs call_id and output", where)
            message = {
                "role": "tool",
                "tool_call_id": item.call_id,
                "content": _text(context, item.output, f"{where}.output"),
            }
            if item.call_id in names:
                message["name"] = names[item.call_id]
            messages.append(message)
        else:
            message = _message(context, item, where)
            messages.append(message)
        if reasoning and message["role"] == "assistant":
            message["reasoning_content"] = reasoning
        reasoning = ""
    if not messages:
        raise bad_request("input is empty", "input")
    return tuple(messages)


def _assistant(messages: list[Message], *, new: bool) -> Message:
    """The assistant's message at the end; messages that were stored are not changed."""
    last = messages[-1] if messages else None
    if last is None or last["role"] != "assistant" or new:
        messages.append({"role": "assistant", "content": ""})
    else:
        messages[-1] = {**last, "tool_calls": list(last.get("tool_calls", ()))}
    return messages[-1]


def _message(context: ServerContext, item: InputItem, where: str) -> Message:
    if item.role is None or item.content is None:
        raise bad_request(f"{where} needs role and content", where)
    role: str = item.role
    if role == "developer" and not (context.template and "developer" in context.template.source):
        role = "system"
    return {"role": role, "content": _text(context, item.content, f"{where}.content")}


def _text(context: ServerContext, content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for i, part in enumerate(content):
        place = f"{where}[{i}]"
        kind = part.type if isinstance(part, InputPart) else part.get("type")
        if kind == "input_image":
            check_image(context, getattr(part, "image_url", None), place)
        if kind not in ("input_text", "output_text", "refusal", "text"):
            raise unsupported(place, f"{context.name} reads text only, no {kind!r:.40}")
        text = part.refusal if kind == "refusal" else part.text
        if text is None:
            raise bad_request(f"{place} has no text", place)
        texts.append(text)
    return "\n".join(texts)


def _reasoning(item: InputItem) -> str:
    parts = item.content if isinstance(item.content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n".join(text for text in texts if isinstance(text, str))
