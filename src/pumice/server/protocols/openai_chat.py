"""OpenAI's `/v1/chat/completions`.

https://platform.openai.com/docs/api-reference/chat
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
from pumice.server.core.generate import End, Generation, Step, start
from pumice.server.core.job import Job
from pumice.server.core.result import Result, Usage, collect
from pumice.server.errors import bad_request, body_of, from_exception, unsupported
from pumice.server.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from pumice.server.protocols.fields import (
    SamplingFields,
    check_choices,
    check_model,
    dropped_header,
    logprob_entry,
    new_id,
    stops,
)
from pumice.server.protocols.openai_format import ResponseFormat, StreamOptions, grammar_of
from pumice.server.protocols.openai_messages import ChatMessage, messages_of
from pumice.server.protocols.openai_tools import ToolChoiceField, ToolDefinition, tools_of
from pumice.server.protocols.openai_usage import usage_body
from pumice.server.protocols.template import template_of
from pumice.server.responses import Pattern, Stream, json_answer, sse, unless_gone

PATH = "/v1/chat/completions"


class ChatRequest(SamplingFields):
    """The fields of OpenAI's request that work here, then ours. What is not among them, and the
    values that cannot work, are refused.
    """

    messages: list[ChatMessage]
    model: str | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    metadata: dict[str, str] | None = Field(None, description="Taken and not kept.")
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: bool | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None


def make_router(context: ServerContext) -> APIRouter:
    router = json_router(context, "OpenAI")

    @router.post(PATH, summary="Answer a conversation.")
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        job = job_of(context, body, request.state.salt)
        return await unless_gone(request, _answer(context, body, job))

    return router


async def _answer(context: ServerContext, body: ChatRequest, job: Job) -> Response:
    generation = await start(context, job)
    headers = dropped_header(generation)
    answer = _Answer(context, body, job, generation)
    if body.stream:
        release = generation.steps.aclose
        return Stream(answer.stream(), context.settings, release, headers=headers)
    results = await collect(generation, job.n)
    return json_answer(answer.whole(results), headers)


def job_of(context: ServerContext, body: ChatRequest, salt: bytes) -> Job:
    """Errors are 400, 404 or 413 in OpenAI's shape."""
    check_model(context, body.model)
    _check_values(body)
    sampling = body.sampling()
    if body.logprobs:
        sampling |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    elif body.top_logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    count = body.n or 1
    check_choices(context, count)
    messages = messages_of(context, body.messages)
    if body.continue_final_message and messages[-1]["role"] != "assistant":
        raise bad_request(
            "continue_final_message needs an assistant's message at the end",
            "continue_final_message",
        )
    return Job(
        messages=messages,
        sampling=sampling,
        stop=stops(context, body.stop, "stop"),
        max_tokens=_max_tokens(body),
        n=count,
        tools=tools_of(context, body.tools, body.tool_choice, body.parallel_tool_calls),
        grammar=grammar_of(body.response_format, context.settings),
        template=template_of(context, body.reasoning_effort, body.chat_template_kwargs),
        priority=body.priority or 0,
        deadline_s=body.deadline_s,
        truncate=body.truncation == "auto",
        continue_final=bool(body.continue_final_message),
        salt=salt,
    )


def _max_tokens(body: ChatRequest) -> int | None:
    if body.max_tokens is None or body.max_completion_tokens is None:
        return body.max_completion_tokens or body.max_tokens
    if body.max_tokens != body.max_completion_tokens:
        raise bad_request(
            f"max_tokens is {body.max_tokens} and max_completion_tokens is "
            f"{body.max_completion_tokens}; give one",
            "max_tokens",
        )
    return body.max_tokens


def _check_values(body: ChatRequest) -> None:
    """Values that exist in the protocol and cannot work here."""
    if body.modalities and "audio" in body.modalities:
        raise unsupported("modalities", "answers are text")
    if body.store:
        raise unsupported("store", "chat completions are not kept; /v1/responses keeps answers")
    if body.verbosity not in (None, "medium"):
        raise unsupported("verbosity", "this model has one verbosity")
    if body.prompt_cache_retention == "24h":
        raise unsupported("prompt_cache_retention", "the cache is in memory")
    if body.stream_options is not None and not body.stream:
        raise bad_request("stream_options needs stream: true", "stream_options")


class _Answer:
    """One call's answer, in either form."""

    def __init__(
        self, context: ServerContext, body: ChatRequest, job: Job, generation: Generation
    ) -> None:
        self._context = context
        self._generation = generation
        self._job = job
        self._id = new_id("chatcmpl-")
        self._created = int(time.time())
        self._logprobs = bool(body.logprobs)
        options = body.stream_options
        self._usage_wanted = bool(options and options.include_usage)
        self._patterns: dict[int, Pattern] = {}

    def whole(self, results: list[Result]) -> dict[str, Any]:
        choices = []
        for index, result in enumerate(results):
            assert result.end is not None
            message: dict[str, Any] = {
                "role": "assistant",
                "content": result.content if result.content or not result.calls else None,
                "refusal": None,
            }
            if result.reasoning:
                message["reasoning_content"] = result.reasoning
            if result.calls:
                message["tool_calls"] = [
                    {
                        "id": call.call_id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": call.arguments},
                    }
                    for call in result.calls
                ]
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs_of(result.logprobs),
                    "finish_reason": result.end.reason,
                }
            )
        usage = Usage.of(self._generation.prompt_tokens, [r.end for r in results])
        return self._head("chat.completion") | {"choices": choices, "usage": usage_body(usage)}

    async def stream(self) -> AsyncGenerator[str, None]:
        ends: list[End | None] = []
        try:
            for index in range(self._job.n):
                yield self._chunk(index, {"role": "assistant", "content": ""})
            async for step in self._generation.steps:
                if step.is_text:
                    yield self._text(step)
                    continue
                for chunk in self._chunks(step):
                    yield chunk
                ends.append(step.end)
            if self._usage_wanted:
                usage = Usage.of(self._generation.prompt_tokens, ends)
                head = self._head("chat.completion.chunk")
                yield sse(head | {"choices": [], "usage": usage_body(usage)})
        except Exception as error:
            yield sse(body_of(from_exception(error), PATH))
        finally:
            await self._generation.steps.aclose()
        yield sse("[DONE]")

    def _text(self, step: Step) -> str:
        """The chunk of a step that is nothing but text, as nearly all are."""
        pattern = self._patterns.get(step.index)
        if pattern is None:
            pattern = Pattern(lambda text: self._chunk(step.index, {"content": text}))
            self._patterns[step.index] = pattern
        return pattern.fill(step.text)

    def _chunks(self, step: Step) -> list[str]:
        deltas = [delta_of(event) for event in step.events]
        logprobs = self._logprobs_of(step.logprobs) if step.logprobs else None
        if logprobs is not None and not deltas:
            deltas = [{}]
        chunks = []
        for delta in deltas:
            chunks.append(self._chunk(step.index, delta, logprobs=logprobs))
            logprobs = None
        if step.end is not None:
            chunks.append(self._chunk(step.index, {}, step.end.reason))
        return chunks

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> str:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        chunk = self._head("chat.completion.chunk") | {"choices": [choice]}
        if self._usage_wanted:
            chunk["usage"] = None
        return sse(chunk)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._context.name,
            "service_tier": "default",
            "system_fingerprint": self._context.fingerprint,
        }

    def _logprobs_of(self, logprobs: Any) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        return {
            "content": [logprob_entry(self._context, entry) for entry in logprobs],
            "refusal": None,
        }


def delta_of(event: Event) -> dict[str, Any]:
    """A chunk's delta."""
    match event:
        case ContentDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case ToolCallStart(index, call_id, name):
            call = {
                "index": index,
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
            return {"tool_calls": [call]}
        case ToolCallArguments(index, fragment):
            return {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}
