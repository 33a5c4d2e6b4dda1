"""Requests made from our own OpenAPI schema: whatever comes, no answer is a 500."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import hypothesis
import pytest
import schemathesis
from server_app import make_engine

from pumice.engine.async_engine import AsyncEngine
from pumice.server.app import create_app
from pumice.server.context import ServerContext
from pumice.server.settings import ServerSettings

EXAMPLES = 6  # for each operation


@pytest.fixture(scope="module")
def loop() -> Any:
    """An event loop in a thread, so that one engine serves all examples."""
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


@pytest.fixture(scope="module")
def app(loop: Any) -> Any:
    async def begin() -> AsyncEngine:
        return AsyncEngine(make_engine("the fox", context_length=64, num_blocks=64))

    engine = asyncio.run_coroutine_threadsafe(begin(), loop).result(30)
    settings = ServerSettings(names=("toy",), access_log=False, max_choices=4)
    yield create_app(ServerContext(engine, settings))
    asyncio.run_coroutine_threadsafe(engine.close(), loop).result(30)


@pytest.fixture(scope="module")
def operations(app: Any) -> list[Any]:
    schema = schemathesis.openapi.from_dict(app.openapi())
    return [result.ok() for result in schema.get_all_operations()]


def test_no_request_makes_a_500(app: Any, loop: Any, operations: list[Any]) -> None:
    paths = {operation.path for operation in operations}
    assert {"/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat"} <= paths
    asked: list[tuple[str, int]] = []

    async def ask(case: Any) -> httpx.Response:
        values = case.as_transport_kwargs(base_url="http://localhost")
        wanted = ("method", "url", "params", "headers", "json", "data", "content")
        given = {k: v for k, v in values.items() if k in wanted and v is not None}
        if isinstance(given.get("data"), str | bytes):
            given["content"] = given.pop("data")
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport) as http:
            return await http.request(**given)

    for operation in operations:
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            if mode is schemathesis.GenerationMode.NEGATIVE and not operation.body:
                continue  # there is nothing to get wrong
            strategy = operation.as_strategy(generation_mode=mode)

            @hypothesis.settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(hypothesis.HealthCheck),
                phases=[hypothesis.Phase.generate],
            )
            @hypothesis.given(case=strategy)
            def one(case: Any) -> None:
                answer = asyncio.run_coroutine_threadsafe(ask(case), loop).result(60)
                asked.append((case.path, answer.status_code))
                assert answer.status_code in (200, 400, 404, 405, 501), (
                    case.as_curl_command(), answer.status_code, answer.text,
                )  # fmt: skip
                assert "Traceback" not in answer.text

            one()
    assert len(asked) > 60
    assert {status for _, status in asked} >= {200, 400}
