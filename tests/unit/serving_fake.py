"""A server of OpenAI's protocol that does what a test wants, in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass
class FakeServer:
    """gate: answers wait until so many requests have come. behaviours: of the requests in turn;
    "ok" when there is none: "429", "broken", "garbage", "fault", "empty", "no usage".
    """

    gate: int = 0
    behaviours: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: set[str | None] = field(default_factory=set)
    running: int = 0
    peak: int = 0

    async def models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "fake"}]})

    async def answer(self, request: Request) -> Response:
        self.keys.add(request.headers.get("authorization"))
        self.bodies.append(await request.json())
        body = self.bodies[-1]
        place = len(self.bodies) - 1
        behaviour = self.behaviours[place] if place < len(self.behaviours) else "ok"
        if behaviour == "429":
            return JSONResponse({"error": {"message": "the queue is full"}}, 429)
        return StreamingResponse(self._stream(body, behaviour), media_type="text/event-stream")

    async def _stream(self, body: dict[str, Any], behaviour: str) -> AsyncIterator[str]:
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            while len(self.bodies) < self.gate:
                await asyncio.sleep(0.005)
            async for line in self._chunks(body, behaviour):
                await asyncio.sleep(0.002)
                yield line
        finally:
            self.running -= 1

    async def _chunks(self, body: dict[str, Any], behaviour: str) -> AsyncIterator[str]:
        def chunk(choices: list[Any], **more: Any) -> str:
            return f"data: {json.dumps({'choices': choices, **more})}\n\n"

        chat = "messages" in body
        count = 0 if behaviour == "empty" else body["max_tokens"]
        yield ": a comment\n\n"
        yield chunk([{"delta": {"role": "assistant", "content": ""}} if chat else {"text": ""}])
        for i in range(count):
            yield chunk([{"delta": {"content": f"{i} "}} if chat else {"text": f"{i} "}])
        if behaviour == "broken":
            return
        if behaviour == "garbage":
            yield "data: {]\n\n"
        if behaviour == "fault":
            yield 'data: {"error": {"message": "out of luck"}}\n\n'
        yield chunk([{"delta": {}, "finish_reason": "length"}])
        if behaviour != "no usage":
            yield chunk([], usage={"prompt_tokens": 5, "completion_tokens": count})
        yield "data: [DONE]\n\n"

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Yields the URL."""
        routes = [
            Route("/v1/models", self.models),
            Route("/v1/chat/completions", self.answer, methods=["POST"]),
            Route("/v1/completions", self.answer, methods=["POST"]),
        ]
        with serve_app(Starlette(routes=routes)) as url:
            yield url


@contextmanager
def serve_app(app: Any) -> Iterator[str]:
    """Serves an application in a thread; yields its URL."""
    config = uvicorn.Config(app, port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join(10)
