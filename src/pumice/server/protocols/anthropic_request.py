"""The request of Anthropic's `/v1/messages`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from pumice.engine.grammar import Grammar
from pumice.server.context import ServerContext
from pumice.server.core import formats
from pumice.server.core.job import Job, Message, Tools
from pumice.server.errors import bad_request, unsupported
from pumice.server.protocols.fields import Fields, check_model, stops
from pumice.server.protocols.openai_messages import check_image
from pumice.server.protocols.openai_tools import (
    FunctionDefinition,
    NamedFunction,
    NamedToolChoice,
    ToolDefinition,
    tools_of,
)

CacheControl = dict[str, Any] | None  # taken: what repeats is cached without being asked


class Block(Fields):
    type: Literal[
        "text", "tool_use", "tool_result", "thinking", "redacted_thinking", "image", "document"
    ]
    text: str | None = None
    citations: list[Any] | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    caller: dict[str, Any] | None = None
    toolset_name: None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    source: dict[str, Any] | None = None
    title: str | None = None
    context: str | None = None
    cache_control: CacheControl = None


class TextBlock(Fields):
    type: Literal["text"]
    text: str
    citations: list[Any] | None = None
    cache_control: CacheControl = None


class InputMessage(Fields):
    role: Literal["user", "assistant"]
    content: str | list[Block]


class Tool(Fields):
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheControl = None


class ToolChoice(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Metadata(Fields):
    user_id: str | None = None


class Thinking(Fields):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Fields):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Fields):
    """What is counted: the conversation and all that the template shows of it."""

    messages: list[InputMessage]
    model: str
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl = None

    @property
    def thinks(self) -> bool:
        """Whether thinking is wanted, and to be shown."""
        thinking = self.thinking
        return bool(thinking and thinking.type != "disabled" and thinking.display != "omitted")


class MessagesRequest(CountRequest):
    """The fields of Anthropic's request that work here, then ours."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    stop_sequences: list[str] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    seed: int | None = Field(None, ge=0, lt=2**63)
    priority: int | None = Field(None, ge=-1000, le=1000)
    truncation: Literal["auto", "disabled"] | None = None


def job_of(context: ServerContext, body: CountRequest, max_tokens: int | None, salt: bytes) -> Job:
    """Errors are 400, 404 or 413 in Anthropic's shape."""
    check_model(context, body.model)
    sampling: dict[str, Any] = {}
    stop: tuple[str, ...] = ()
    priority, truncate = 0, False
    if isinstance(body, MessagesRequest):
        for name in ("temperature", "top_k", "top_p", "seed"):
            if getattr(body, name) is not None:
                sampling[name] = getattr(body, name)
        stop = stops(context, body.stop_sequences, "stop_sequences")
        priority, truncate = body.priority or 0, body.truncation == "auto"
    messages = _messages(context, body)
    return Job(
        messages=messages,
        sampling=sampling,
        stop=stop,
        max_tokens=max_tokens,
        tools=_tools(context, body),
        grammar=_grammar(context, body),
        template=_template(context, body),
        priority=priority,
        truncate=truncate,
        continue_final=messages[-1]["role"] == "assistant",
        salt=salt,
    )


def _template(context: ServerContext, body: CountRequest) -> dict[str, Any]:
    """Thinks when it is asked to, where the model lets one choose."""
    source = "" if context.template is None else context.template.source
    if "enable_thinking" not in source:
        return {}
    return {"enable_thinking": bool(body.thinking and body.thinking.type != "disabled")}


def _grammar(context: ServerContext, body: CountRequest) -> Grammar | None:
    given = body.output_config.format if body.output_config else None
    if given is None:
        return None
    return formats.json_schema(given.schema_, context.settings, "output_config.format.schema")


def _tools(context: ServerContext, body: CountRequest) -> Tools:
    definitions = [
        ToolDefinition(
            type="function",
            function=FunctionDefinition(
                name=tool.name,
                description=tool.description,
                parameters=tool.input_schema,
                strict=tool.strict,
            ),
        )
        for tool in body.tools or ()
    ]
    choice, parallel = body.tool_choice, True
    told: Any = "auto"
    if choice is not None:
        parallel = not choice.disable_parallel_tool_use
        told = {"auto": "auto", "none": "none", "any": "required"}.get(choice.type)
        if told is None:
            if not choice.name:
                raise bad_request("tool_choice of type tool needs a name", "tool_choice.name")
            told = NamedToolChoice(type="function", function=NamedFunction(name=choice.name))
    return tools_of(context, definitions, told, parallel)


def _messages(context: ServerContext, body: CountRequest) -> tuple[Message, ...]:
    if not body.messages:
        raise bad_request("messages is empty; at least one is needed", "messages")
    messages: list[Message] = []
    if body.system:
        system = body.system
        text = system if isinstance(system, str) else "\n".join(block.text for block in system)
        messages.append({"role": "system", "content": text})
    names: dict[str, str] = {}
    for i, message in enumerate(body.messages):
        where = f"messages[{i}]"
        if isinstance(message.content, str):
            messages.append({"role": message.role, "content": message.content})
        elif message.role == "assistant":
            messages.append(_assistant(context, message.content, where, names))
        else:
            messages += _user(context, message.content, where, names)
    return tuple(messages)


def _assistant(
    context: ServerContext, blocks: Sequence[Block], where: str, names: dict[str, str]
) -> Message:
    texts, thoughts, calls = [], [], []
    for i, block in enumerate(blocks):
        place = f"{where}.content[{i}]"
        if block.type == "tool_use":
            if not (block.id and block.name) or block.input is None:
                raise bad_request(f"{place} needs id, name and input", place)
            names[block.id] = block.name
            function = {"name": block.name, "arguments": block.input}
            calls.append({"id": block.id, "type": "function", "function": function})
        elif block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type != "redacted_thinking":
            texts.append(_text(context, block, place))
    message: Message = {"role": "assistant", "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _user(
    context: ServerContext, blocks: Sequence[Block], where: str, names: dict[str, str]
) -> list[Message]:
    """Tools' results are messages of their own, before what the user says."""
    results: list[Message] = []
    texts = []
    for i, block in enumerate(blocks):
        place = f"{where}.content[{i}]"
        if block.type != "tool_result":
            texts.append(_text(context, block, place))
            continue
        if not block.tool_use_id:
            raise bad_request(f"{place} needs tool_use_id", place)
        inner = block.content or ""
        if not isinstance(inner, str):
            inner = "\n".join(
                _text(context, part, f"{place}.content[{j}]") for j, part in enumerate(inner)
            )
        result: Message = {
            "role": "tool",
            "tool_call_id": block.tool_use_id,
            "content": f"Error: {inner}" if block.is_error else inner,
        }
        if block.tool_use_id in names:
            result["name"] = names[block.tool_use_id]
        results.append(result)
    return [*results, {"role": "user", "content": "\n".join(texts)}] if texts else results


def _text(context: ServerContext, block: Block, where: str) -> str:
    if block.type == "image" and block.source:
        check_image(context, block.source.get("data") or block.source.get("url"), where)
    if block.type != "text":
        raise unsupported(where, f"{context.name} reads text only, no {block.type} here")
    if block.text is None:
        raise bad_request(f"{where} has no text", where)
    return block.text
