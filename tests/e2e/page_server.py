"""A server with the routes that the web page uses, and answers that a test wants."""

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
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from pumice.server.ui.routes import make_router


@dataclass
class Script:
    """What the server answers. delay: seconds between pieces."""

    pieces: list[str] = field(default_factory=lambda: ["Hello", ", ", "world", "!"])
    reasoning: list[str] = field(default_factory=list)
    delay: float = 0.0
    key: str | None = None
    fail: tuple[int, str] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    cancelled: int = 0
    running: int = 0
    tokens: int = 0
    paths: list[str] = field(default_factory=list)


def make_app(script: Script) -> FastAPI:
    app = FastAPI()
    app.include_router(make_router())

    @app.middleware("http")
    async def guard(request: Request, follow: Any) -> Response:
        path = request.url.path
        script.paths.append(path)
        wanted = script.key and not (path == "/" or path.startswith("/ui/"))
        if wanted and request.headers.get("authorization") != f"Bearer {script.key}":
            return JSONResponse({"error": {"message": "a key is needed"}}, 401)
        answer: Response = await follow(request)
        return answer

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        names = ("smollm2-135m", "other")
        return {"object": "list", "data": [{"id": n, "max_model_len": 2048} for n in names]}

    @app.get("/metrics")
    async def metrics() -> PlainTextResponse:
        label = '{model_name="a \\"quoted\\" } name"}'
        lines = [
            "# HELP pumice_engine_running The engine's running.",
            "# TYPE pumice_engine_running gauge",
            f"pumice_engine_running{label} {script.running}.0",
            f"pumice_engine_waiting{label} 3.0",
            f"pumice_engine_blocks{label} 512.0",
            f"pumice_engine_blocks_in_use{label} 128.0",
            f"pumice_engine_blocks_cached{label} 64.0",
            f"pumice_engine_decode_tokens_total{label} {script.tokens}.0",
            f"pumice_time_to_first_token_seconds_sum{label} {0.25 * len(script.requests)}",
            f"pumice_time_to_first_token_seconds_count{label} {len(script.requests)}",
            f"pumice_inter_token_latency_seconds_sum{label} {0.0125 * script.tokens}",
            f"pumice_inter_token_latency_seconds_count{label} {script.tokens}",
        ]
        return PlainTextResponse("\n".join(lines) + "\n")

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        script.requests.append(await request.json())
        if script.fail is not None:
            status, message = script.fail
            return JSONResponse({"error": {"message": message}}, status)
        return StreamingResponse(_stream(script), media_type="text/event-stream")

    return app


async def _stream(script: Script) -> AsyncIterator[str]:
    def event(choices: list[Any], **more: Any) -> str:
        return f"data: {json.dumps({'choices': choices, **more})}\n\n"

    script.running += 1
    try:
        yield event([{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        for kind, pieces in (("reasoning_content", script.reasoning), ("content", script.pieces)):
            for piece in pieces:
                script.tokens += 1
                yield event([{"index": 0, "delta": {kind: piece}, "finish_reason": None}])
                await asyncio.sleep(script.delay)
        yield event([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        count = len(script.pieces) + len(script.reasoning)
        usage = {"prompt_tokens": 9, "completion_tokens": count, "total_tokens": 9 + count}
        yield event([], usage=usage)
        yield "data: [DONE]\n\n"
    except asyncio.CancelledError:
        script.cancelled += 1
        raise
    finally:
        script.running -= 1


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """Runs the server in a thread; yields its URL."""
    config = uvicorn.Config(make_app(script), port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive() and time.monotonic() < deadline
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)
