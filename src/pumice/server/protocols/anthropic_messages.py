"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`.

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from pumice.server.body import json_router
from pumice.server.context import ServerContext
from pumice.server.core.generate import End, Generation, Step, start
from pumice.server.core.job import Job
from pumice.server.core.prompt import encode
from pumice.server.core.result import Result, Usage, collect
from pumice.server.errors import body_of, from_exception
from pumice.server.parsers.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallArguments,
    ToolCallStart,
)
from pumice.server.protocols.anthropic_request import CountRequest, MessagesRequest, job_of
from pumice.server.protocols.fields import dropped_header, new_id
from pumice.server.responses import Stream, json_answer, sse, unless_gone

PATH = "/v1/messages"


def make_router(context: ServerContext) -> APIRouter:
    router = json_router(context, "Anthropic")

    @router.post(PATH, summary="Answer a conversation.")
    async def messages(request: Request, body: MessagesRequest) -> Response:
        job = job_of(context, body, body.max_tokens, request.state.salt)
        return await unless_gone(request, _answer(context, body, job))

    @router.post(f"{PATH}/count_tokens", summary="How many tokens a conversation has.")
    async def count_tokens(request: Request, body: CountRequest) -> Response:
        job = job_of(context, body, None, request.state.salt)
        prompt = await asyncio.to_thread(encode, context, job)
        return json_answer({"input_tokens": len(prompt.ids)})

    return router


async def _answer(context: ServerContext, body: MessagesRequest, job: Job) -> Response:
    generation = await start(context, job)
    thinking = body.thinks
    headers = dropped_header(generation)
    if body.stream:
        events = _stream(context, generation, thinking)
        return Stream(events, context.settings, generation.steps.aclose, comment=_PING,
                      headers=headers)  # fmt: skip
    (result,) = await collect(generation, 1)
    assert result.end is not None
    message = _message(context, new_id("msg_"), _usage(generation, result.end))
    message["content"] = _blocks(result, thinking)
    message["stop_reason"], message["stop_sequence"] = _stop(result.end), result.end.stop
    return json_answer(message, headers)


_PING = sse({"type": "ping"}, "ping")


def _message(context: ServerContext, name: str, usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": name,
        "type": "message",
        "role": "assistant",
        "model": context.name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _blocks(result: Result, thinking: bool) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if thinking and result.reasoning:
        blocks.append({"type": "thinking", "thinking": result.reasoning, "signature": ""})
    if result.content or not (result.calls or blocks):
        blocks.append({"type": "text", "text": result.content})
    for call in result.calls:
        blocks.append(
            {
                "type": "tool_use",
                "id": call.call_id,
                "name": call.name,
                "input": _object(call.arguments),
            }
        )
    return blocks


def _object(arguments: str) -> dict[str, Any]:
    """The arguments; nothing of them when max_tokens cut them off, as stop_reason says."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _stop(end: End) -> str:
    if end.reason == "stop":
        return "end_turn" if end.stop is None else "stop_sequence"
    if end.reason == "length":
        return "model_context_window_exceeded" if end.context_full else "max_tokens"
    return "tool_use" if end.reason == "tool_calls" else "pause_turn"


def _usage(generation: Generation, end: End | None) -> dict[str, Any]:
    """Tokens of the prompt that were in the cache are not among input_tokens."""
    usage = Usage.of(generation.prompt_tokens, [end])
    return {
        "input_tokens": usage.prompt - usage.cached,
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "service_tier": "standard",
    }


async def _stream(
    context: ServerContext, generation: Generation, thinking: bool
) -> AsyncGenerator[str, None]:
    try:
        message = _message(context, new_id("msg_"), _usage(generation, None))
        yield _sse("message_start", message=message)
        blocks = _Blocks(thinking)
        end: End | None = None
        async for step in generation.steps:
            for piece in blocks.add(step):
                yield piece
            end = step.end or end
        assert end is not None
        for piece in blocks.finish():
            yield piece
        usage = _usage(generation, end)
        del usage["service_tier"]
        delta = {"stop_reason": _stop(end), "stop_sequence": end.stop}
        yield _sse("message_delta", delta=delta, usage=usage)
        yield _sse("message_stop")
    except Exception as error:
        yield sse(body_of(from_exception(error), PATH), "error")


class _Blocks:
    """Content blocks, one open at a time."""

    def __init__(self, thinking: bool) -> None:
        self._thinking = thinking
        self._index = -1
        self._kind = ""

    def add(self, step: Step) -> list[str]:
        return [piece for event in step.events for piece in self._event(event)]

    def finish(self) -> list[str]:
        """An answer without anything is an empty text."""
        begun = [] if self._index >= 0 else self._begin("text", {"type": "text", "text": ""})
        return begun + self._stop()

    def _event(self, event: Event) -> list[str]:
        match event:
            case ContentDelta(text):
                begun = self._need("text", {"type": "text", "text": ""})
                return [*begun, self._delta("text_delta", text=text)]
            case ReasoningDelta(text):
                if not self._thinking:
                    return []
                thought = {"type": "thinking", "thinking": "", "signature": ""}
                begun = self._need("thinking", thought)
                return [*begun, self._delta("thinking_delta", thinking=text)]
            case ToolCallStart(_, call_id, name):
                block: dict[str, Any] = {
                    "type": "tool_use",
                    "id": call_id,
                    "name": name,
                    "input": {},
                }
                return self._stop() + self._begin("tool_use", block)
            case ToolCallArguments(_, fragment):
                return [self._delta("input_json_delta", partial_json=fragment)]

    def _need(self, kind: str, block: dict[str, Any]) -> list[str]:
        return [] if self._kind == kind else self._stop() + self._begin(kind, block)

    def _begin(self, kind: str, block: dict[str, Any]) -> list[str]:
        self._index += 1
        self._kind = kind
        return [_sse("content_block_start", index=self._index, content_block=block)]

    def _stop(self) -> list[str]:
        if not self._kind:
            return []
        pieces = [self._delta("signature_delta", signature="")] if self._kind == "thinking" else []
        self._kind = ""
        return [*pieces, _sse("content_block_stop", index=self._index)]

    def _delta(self, kind: str, **fields: str) -> str:
        return _sse("content_block_delta", index=self._index, delta={"type": kind, **fields})


def _sse(kind: str, **fields: Any) -> str:
    return sse({"type": kind, **fields}, kind)
