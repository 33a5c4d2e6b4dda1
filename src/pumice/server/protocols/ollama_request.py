"""The requests of Ollama's `/api/chat` and `/api/generate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from pumice.engine.grammar import Grammar
from pumice.server.context import ServerContext
from pumice.server.core import formats
from pumice.server.core.job import Job, Message
from pumice.server.errors import bad_request, unsupported
from pumice.server.protocols.fields import Fields, check_model, stops
from pumice.server.protocols.openai_tools import ToolDefinition, tools_of


class Options(Fields):
    """Ollama's options. Those of loading (num_thread, num_gpu, …) are taken and change nothing:
    the model is loaded already.
    """

    num_predict: int | None = Field(None, ge=-2)
    num_ctx: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0)
    top_k: int | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    repeat_penalty: float | None = Field(None, gt=0)
    repeat_last_n: int | None = Field(None, ge=-1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = None
    stop: str | list[str] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    tfs_z: float | None = None
    typical_p: float | None = None
    penalize_newline: bool | None = None
    numa: bool | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    low_vram: bool | None = None
    logits_all: bool | None = None
    vocab_only: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
    embedding_only: bool | None = None
    num_thread: int | None = None
    num_keep: int | None = None


class OllamaFunction(Fields):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    description: str | None = None
    index: int | None = None


class Call(Fields):
    id: str | None = None
    type: Literal["function"] | None = None
    function: OllamaFunction


class OllamaMessage(Fields):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class BaseRequest(Fields):
    model: str
    stream: bool | None = Field(None, description="true when it is not given.")
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    keep_alive: float | str | None = Field(None, description="Taken; the model stays loaded.")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    truncate: bool | None = Field(None, description="Leave out the oldest messages; false if none.")
    shift: Literal[False] | None = None


class OllamaChatRequest(BaseRequest):
    messages: list[OllamaMessage] | None = None
    tools: list[ToolDefinition] | None = None


class OllamaGenerateRequest(BaseRequest):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: Literal[""] | None = None
    template: Literal[""] | None = None
    context: None = None
    images: list[Any] | None = None


def chat_job(context: ServerContext, body: OllamaChatRequest, salt: bytes) -> Job | None:
    """None when there is nothing to answer: the client only wants the model loaded."""
    if not body.messages:
        check_model(context, body.model)
        return None
    tools = tools_of(context, body.tools, "auto" if body.tools else None, None)
    return _job(context, body, salt, messages=_messages(context, body.messages), tools=tools)


def generate_job(context: ServerContext, body: OllamaGenerateRequest, salt: bytes) -> Job | None:
    """The prompt is a user's message, or with `raw` (or a model without a template) the text."""
    if body.images:
        raise unsupported("images", f"{context.name} reads text only")
    if not body.prompt:
        check_model(context, body.model)
        return None
    if body.raw or context.template is None:
        if body.system:
            raise bad_request("system needs the template, which raw leaves out", "system")
        return _job(context, body, salt, prompt=body.prompt)
    messages: list[Message] = [{"role": "user", "content": body.prompt}]
    if body.system:
        messages.insert(0, {"role": "system", "content": body.system})
    return _job(context, body, salt, messages=tuple(messages))


def _job(context: ServerContext, body: BaseRequest, salt: bytes, **given: Any) -> Job:
    check_model(context, body.model)
    options = body.options or Options.model_validate({})
    sampling = _sampling(context, options)
    if body.logprobs:
        sampling |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    elif body.top_logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    predict = options.num_predict
    if predict == 0:
        raise bad_request("num_predict is 0; allowed: 1 or more, or -1 for no bound", "num_predict")
    return Job(
        sampling=sampling,
        stop=stops(context, options.stop, "options.stop"),
        max_tokens=None if predict is None or predict < 0 else predict,
        grammar=_grammar(context, body),
        template=_template(context, body.think),
        truncate=bool(body.truncate),
        salt=salt,
        **given,
    )


def _template(context: ServerContext, think: bool | str | None) -> dict[str, Any]:
    source = "" if context.template is None else context.template.source
    if think is None:
        return {}
    if isinstance(think, str) and "reasoning_effort" in source:
        return {"reasoning_effort": think}
    if "enable_thinking" in source:
        return {"enable_thinking": bool(think)}
    if think and "think>" not in source:
        raise unsupported("think", f"{context.name} does not think")
    return {}


def _grammar(context: ServerContext, body: BaseRequest) -> Grammar | None:
    if not body.format and not isinstance(body.format, dict):
        return None
    if body.format == "json":
        return formats.json_object()
    return formats.json_schema(body.format, context.settings, "format")


def _sampling(context: ServerContext, options: Options) -> dict[str, Any]:
    for name, off in (("mirostat", 0), ("tfs_z", 1), ("typical_p", 1)):
        if getattr(options, name) not in (None, off):
            raise unsupported(f"options.{name}", "there is no such sampler here")
    if options.repeat_last_n not in (None, -1, 0):
        raise unsupported("options.repeat_last_n", "a penalty is on the whole text (-1) or off (0)")
    if options.num_ctx is not None and options.num_ctx > context.room:
        raise bad_request(
            f"options.num_ctx is {options.num_ctx:,}; {context.name} was loaded with a context of "
            f"{context.room:,}",
            "options.num_ctx",
        )
    names = {
        "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
        "repeat_penalty": "repetition_penalty", "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
    }  # fmt: skip
    given = {
        ours: getattr(options, theirs)
        for theirs, ours in names.items()
        if getattr(options, theirs) is not None
    }
    if options.repeat_last_n == 0:
        given.pop("repetition_penalty", None)
    if options.seed is not None:
        given["seed"] = options.seed % 2**63
    return given


def _messages(context: ServerContext, given: Sequence[OllamaMessage]) -> tuple[Message, ...]:
    messages: list[Message] = []
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        if message.images:
            raise unsupported(f"{where}.images", f"{context.name} reads text only")
        made: Message = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            made["reasoning_content"] = message.thinking
        if message.tool_calls:
            made["tool_calls"] = [
                {
                    "id": call.id or f"call_{i}_{j}",
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": call.function.arguments,
                    },
                }
                for j, call in enumerate(message.tool_calls)
            ]
        if message.role == "tool":
            made["tool_call_id"] = message.tool_call_id or _called(messages, message.tool_name)
            if message.tool_name:
                made["name"] = message.tool_name
        messages.append(made)
    return tuple(messages)


def _called(messages: list[Message], name: str | None) -> str:
    """The call that a result is of: Ollama's clients name the function, and no call."""
    answered = {m.get("tool_call_id") for m in messages if m["role"] == "tool"}
    for message in reversed(messages):
        for call in message.get("tool_calls", ()):
            if name in (None, call["function"]["name"]) and call["id"] not in answered:
                return str(call["id"])
    return "call_0"
