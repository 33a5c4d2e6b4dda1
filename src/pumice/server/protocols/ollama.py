"""Ollama's API: `/api/chat`, `/api/generate` and what its clients ask of a server.

https://github.com/ollama/ollama/blob/main/docs/api.md. Streams are lines of JSON; durations are
nanoseconds.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pumice.server.body import json_router
from pumice.server.context import ServerContext
from pumice.server.core.generate import End, Generation, Step, start
from pumice.server.core.job import Job
from pumice.server.core.result import Result
from pumice.server.errors import body_of, from_exception
from pumice.server.parsers.events import ContentDelta, ReasoningDelta, ToolCallStart
from pumice.server.protocols.fields import dropped_header, logprob_entry
from pumice.server.protocols.ollama_request import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    chat_job,
    generate_job,
)
from pumice.server.responses import Stream, dumps, json_answer, unless_gone

_NDJSON = "application/x-ndjson"


def make_router(context: ServerContext) -> APIRouter:
    router = json_router(context, "Ollama")

    @router.post("/api/chat", summary="Answer a conversation.")
    async def chat(request: Request, body: OllamaChatRequest) -> Response:
        job = chat_job(context, body, request.state.salt)
        if job is None:
            return json_answer(_loaded(context) | {"message": _said("")})
        return await unless_gone(request, _answer(context, job, body.stream is not False, _said))

    @router.post("/api/generate", summary="Answer a prompt.")
    async def generate(request: Request, body: OllamaGenerateRequest) -> Response:
        job = generate_job(context, body, request.state.salt)
        if job is None:
            return json_answer(_loaded(context) | {"response": ""})
        return await unless_gone(request, _answer(context, job, body.stream is not False, None))

    return router


def now() -> str:
    """RFC 3339."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")


def _loaded(context: ServerContext) -> dict[str, Any]:
    return {"model": context.name, "created_at": now(), "done": True, "done_reason": "load"}


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


async def _answer(context: ServerContext, job: Job, stream: bool, said: Any) -> Response:
    begun = time.perf_counter_ns()
    generation = await start(context, job)
    answer = _Answer(context, job, generation, chat=said is not None, begun=begun)
    headers = dropped_header(generation)
    if stream:
        return Stream(answer.stream(), context.settings, generation.steps.aclose,
                      media_type=_NDJSON, comment=None, headers=headers)  # fmt: skip
    result = Result()
    try:
        async for step in generation.steps:
            result.add(step)
    finally:
        await generation.steps.aclose()
    assert result.end is not None
    line = answer.line(result.content, result.reasoning, answer.calls(result, len(result.calls)))
    if result.logprobs:
        line["logprobs"] = answer.logprobs(result.logprobs)
    return json_answer(line | answer.last(result.end), headers)


class _Answer:
    def __init__(
        self, context: ServerContext, job: Job, generation: Generation, *, chat: bool, begun: int
    ) -> None:
        self._context = context
        self._job = job
        self._generation = generation
        self._chat = chat
        self._begun = begun
        self._told = 0

    async def stream(self) -> AsyncGenerator[str, None]:
        """A line a step; a call is told when it is whole."""
        result = Result()
        try:
            async for step in self._generation.steps:
                result.add(step)
                line = self._line_of(step, result)
                if line is not None:
                    yield dumps(line) + "\n"
            assert result.end is not None
            calls = self.calls(result, len(result.calls))
            yield dumps(self.line("", "", calls) | self.last(result.end)) + "\n"
        except Exception as error:
            yield dumps(body_of(from_exception(error), "/api/")) + "\n"

    def _line_of(self, step: Step, result: Result) -> dict[str, Any] | None:
        text = "".join(e.text for e in step.events if isinstance(e, ContentDelta))
        thinking = "".join(e.text for e in step.events if isinstance(e, ReasoningDelta))
        begins = any(isinstance(e, ToolCallStart) for e in step.events)
        calls = self.calls(result, len(result.calls) - 1) if begins else []
        if not (text or thinking or calls or step.logprobs):
            return None
        line = self.line(text, thinking, calls)
        if step.logprobs:
            line["logprobs"] = self.logprobs(step.logprobs)
        return line

    def line(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        line: dict[str, Any] = {
            "model": self._context.name,
            "created_at": now(),
            "done": False,
        }
        place = line
        if self._chat:
            line["message"] = place = _said(text)
        else:
            line["response"] = text
        if thinking:
            place["thinking"] = thinking
        if calls:
            place["tool_calls"] = calls
        return line

    def calls(self, result: Result, count: int) -> list[dict[str, Any]]:
        """Those among the first `count` that were not told yet. Arguments are an object here; a
        call that was cut off is none.
        """
        told = []
        for index in range(self._told, count):
            call = result.calls[index]
            try:
                arguments = json.loads(call.arguments)
            except ValueError:
                continue
            function = {"index": index, "name": call.name, "arguments": arguments}
            told.append({"id": call.call_id, "function": function})
        self._told = max(self._told, count)
        return told

    def logprobs(self, logprobs: Any) -> list[dict[str, Any]]:
        return [logprob_entry(self._context, entry) for entry in logprobs]

    def last(self, end: End) -> dict[str, Any]:
        """The figures of the last line. What is not prompt or output is waiting and work around."""
        first, decode = round(end.ttft_s * 1e9), round(end.decode_s * 1e9)
        return {
            "done": True,
            "done_reason": "length" if end.reason == "length" else "stop",
            "total_duration": time.perf_counter_ns() - self._begun,
            "load_duration": 0,
            "prompt_eval_count": self._generation.prompt_tokens,
            "prompt_eval_duration": first,
            "eval_count": end.output_tokens,
            "eval_duration": decode,
        }
