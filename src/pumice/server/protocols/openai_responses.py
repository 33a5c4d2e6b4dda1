"""OpenAI's `/v1/responses`, stateless or going on from a stored answer.

https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from pumice.server.body import json_router
from pumice.server.context import ServerContext
from pumice.server.core import formats
from pumice.server.core.generate import End, Generation, start
from pumice.server.core.job import Job, Message
from pumice.server.core.result import Usage
from pumice.server.errors import (
    ApiError,
    bad_request,
    body_of,
    from_exception,
    unsupported,
)
from pumice.server.protocols.fields import (
    Fields,
    SamplingFields,
    check_model,
    dropped_header,
    new_id,
    stops,
)
from pumice.server.protocols.openai_responses_input import InputItem, messages_of_input
from pumice.server.protocols.openai_responses_output import Output
from pumice.server.protocols.openai_tools import (
    AllowedToolChoice,
    AllowedTools,
    FunctionDefinition,
    NamedFunction,
    NamedToolChoice,
    ToolDefinition,
    tools_of,
)
from pumice.server.protocols.template import template_of
from pumice.server.responses import Stream, json_answer, sse, unless_gone
from pumice.server.store import Stored

PATH = "/v1/responses"
_LOGPROBS = "message.output_text.logprobs"


class FunctionTool(FunctionDefinition):
    type: Literal["function"]


class NamedTool(Fields):
    type: Literal["function"]
    name: str


class AllowedResponseTools(Fields):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]] = Field(min_length=1)


class TextFormat(Fields):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(Fields):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Fields):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesStreamOptions(Fields):
    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(SamplingFields):
    """The fields of OpenAI's request that work here, then ours."""

    input: str | list[InputItem]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = Field(None, description="true when it is not given.")
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    text: TextConfig | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedResponseTools | None = (
        None
    )
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = Field(None, description="Of built-in tools, which there are not.")
    reasoning: ReasoningConfig | None = None
    include: list[str] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    background: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def make_router(context: ServerContext) -> APIRouter:
    router = json_router(context, "OpenAI")

    @router.post(PATH, summary="Answer, and keep the answer to go on from.")
    async def create(request: Request, body: ResponsesRequest) -> Response:
        before = _before(context, body, request.state.salt)
        job = job_of(context, body, before, request.state.salt)
        return await unless_gone(request, _answer(context, body, job))

    @router.get(f"{PATH}/{{name}}", summary="A stored answer.")
    async def retrieve(request: Request, name: str) -> Response:
        return json_answer(_stored(context, name, request.state.salt).body)

    @router.get(f"{PATH}/{{name}}/input_items", summary="A stored answer's input.")
    async def input_items(request: Request, name: str) -> Response:
        items = _stored(context, name, request.state.salt).items
        listed = {"object": "list", "data": items[::-1], "has_more": False}
        ends = {"first_id": items[-1]["id"], "last_id": items[0]["id"]} if items else {}
        return json_answer({**listed, **ends})

    @router.delete(f"{PATH}/{{name}}", summary="Forget a stored answer.")
    async def delete(request: Request, name: str) -> Response:
        _stored(context, name, request.state.salt)
        context.store.remove(name, request.state.salt)
        return json_answer({"id": name, "object": "response", "deleted": True})

    return router


def _stored(context: ServerContext, name: str, salt: bytes) -> Stored:
    stored = context.store.get(name, salt)
    if stored is None:
        raise ApiError(
            404, f"there is no response {name!r:.80}; the oldest are forgotten first",
            code="not_found",
        )  # fmt: skip
    return stored


def _before(context: ServerContext, body: ResponsesRequest, salt: bytes) -> tuple[Message, ...]:
    name = body.previous_response_id
    if name is None:
        return ()
    stored = context.store.get(name, salt)
    if stored is None:
        raise ApiError(
            404, f"there is no response {name!r:.80} to go on from; the oldest are forgotten first",
            param="previous_response_id", code="previous_response_not_found",
        )  # fmt: skip
    return stored.messages


def job_of(
    context: ServerContext, body: ResponsesRequest, before: tuple[Message, ...], salt: bytes
) -> Job:
    """Errors are 400, 404 or 413 in OpenAI's shape."""
    check_model(context, body.model)
    for name in body.include or ():
        if name not in (_LOGPROBS, "reasoning.encrypted_content"):
            raise unsupported("include", f"{name!r:.60} is of a built-in tool, of which none works")
    if body.text is not None and body.text.verbosity not in (None, "medium"):
        raise unsupported("text.verbosity", "this model has one verbosity")
    sampling = body.sampling()
    if _LOGPROBS in (body.include or ()):
        sampling |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    elif body.top_logprobs:
        raise bad_request(f"top_logprobs needs {_LOGPROBS!r} in include", "top_logprobs")
    messages = messages_of_input(context, body.input, before)
    if body.instructions:
        messages = ({"role": "system", "content": body.instructions}, *messages)
    definitions = [
        ToolDefinition(
            type="function",
            function=FunctionDefinition(**tool.model_dump(exclude={"type"})),
        )
        for tool in body.tools or ()
    ]
    choice: Any = body.tool_choice
    if isinstance(choice, NamedTool):
        choice = NamedToolChoice(type="function", function=NamedFunction(name=choice.name))
    elif isinstance(choice, AllowedResponseTools):
        allowed = AllowedTools(mode=choice.mode, tools=choice.tools)
        choice = AllowedToolChoice(type="allowed_tools", allowed_tools=allowed)
    effort = body.reasoning.effort if body.reasoning else None
    return Job(
        messages=messages,
        sampling=sampling,
        stop=stops(context, body.stop, "stop"),
        max_tokens=body.max_output_tokens,
        tools=tools_of(context, definitions, choice, body.parallel_tool_calls),
        grammar=_grammar(context, body.text.format if body.text else None),
        template=template_of(context, effort, body.chat_template_kwargs),
        priority=body.priority or 0,
        deadline_s=body.deadline_s,
        truncate=body.truncation == "auto",
        salt=salt,
    )


def _grammar(context: ServerContext, given: TextFormat | None) -> Any:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return formats.json_object()
    return formats.json_schema(given.schema_, context.settings, "text.format.schema")


async def _answer(context: ServerContext, body: ResponsesRequest, job: Job) -> Response:
    generation = await start(context, job)
    answer = _Answer(context, body, job, generation)
    headers = dropped_header(generation)
    if body.stream:
        return Stream(answer.stream(), context.settings, generation.steps.aclose, headers=headers)
    try:
        async for step in generation.steps:
            answer.output.add(step)
    finally:
        await generation.steps.aclose()
    answer.output.close(answer.output.result.end)
    return json_answer(answer.finish(), headers)


class _Answer:
    def __init__(
        self, context: ServerContext, body: ResponsesRequest, job: Job, generation: Generation
    ) -> None:
        self._context = context
        self._body = body
        self._job = job
        self._generation = generation
        self._created = time.time()
        self._id = new_id("resp_")
        self.output = Output(context, logprobs="logprobs" in job.sampling)
        self._sequence = 0

    async def stream(self) -> AsyncGenerator[str, None]:
        """Events, numbered from 0."""
        try:
            begun = self._response("in_progress")
            yield self._sse({"type": "response.created", "response": begun})
            yield self._sse({"type": "response.in_progress", "response": begun})
            async for step in self._generation.steps:
                for event in self.output.add(step):
                    yield self._sse(event)
            for event in self.output.close(self.output.result.end):
                yield self._sse(event)
            body = self.finish()
            yield self._sse({"type": f"response.{body['status']}", "response": body})
        except Exception as error:
            told = from_exception(error)
            failed = self._response("failed")
            code = "server_error" if told.status >= 500 else "invalid_prompt"
            failed["error"] = {"code": code, "message": told.message}
            yield self._sse({"type": "response.failed", "response": failed})
            detail = body_of(told, PATH)["error"]
            yield self._sse({**detail, "type": "error", "code": told.code or code})

    def _sse(self, event: dict[str, Any]) -> str:
        numbered = {**event, "sequence_number": self._sequence}
        self._sequence += 1
        return sse(numbered, event["type"])

    def finish(self) -> dict[str, Any]:
        """The whole response, which is stored unless that is not wanted."""
        end = self.output.result.end
        assert end is not None
        cut = end.reason in ("length", "deadline")
        body = self._response("incomplete" if cut else "completed", end)
        if cut:
            reason = "max_output_tokens" if end.reason == "length" else "deadline"
            body["incomplete_details"] = {"reason": reason}
        if self._body.store is not False:
            messages = self._job.messages[1:] if self._body.instructions else self._job.messages
            stored = Stored(body, self._items(), (*messages, self.output.message()), self._job.salt)
            self._context.store.put(self._id, stored)
        return body

    def _items(self) -> list[dict[str, Any]]:
        given = self._body.input
        if isinstance(given, str):
            part = {"type": "input_text", "text": given}
            return [{"id": new_id("msg_"), "type": "message", "role": "user", "content": [part]}]
        dumped = [item.model_dump(exclude_none=True) for item in given]
        return [{"id": new_id("item_"), **item} for item in dumped]

    def _response(self, status: str, end: End | None = None) -> dict[str, Any]:
        body, params = self._body, self._context.engine.engine.sampling(**self._job.sampling)
        told = body.model_dump(include={"text", "tool_choice", "reasoning"}, by_alias=True)
        tools = [{"type": "function", **t["function"]} for t in self._job.tools.functions]
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": time.time() if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._context.name,
            "output": self.output.items if end is not None else [],
            "parallel_tool_calls": self._job.tools.parallel,
            "previous_response_id": body.previous_response_id,
            "reasoning": told["reasoning"] or {"effort": None, "summary": None},
            "service_tier": "default",
            "store": body.store is not False,
            "temperature": params.temperature,
            "text": told["text"] or {"format": {"type": "text"}},
            "tool_choice": told["tool_choice"] or "auto",
            "tools": [{"strict": False, **tool} for tool in tools],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": params.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None if end is None else self._usage(end),
            "user": body.user,
            "metadata": body.metadata or {},
            "background": False,
        }

    def _usage(self, end: End) -> dict[str, Any]:
        usage = Usage.of(self._generation.prompt_tokens, [end])
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.output,
        }
