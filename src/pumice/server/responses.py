"""Answers that take time: streams, and answers whose client may leave before they are ready."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from pumice.server.settings import ServerSettings

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def dumps(value: Any) -> str:
    """Compact JSON, as UTF-8 and not as escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def sse(data: Mapping[str, Any] | str, event: str | None = None) -> str:
    """A server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    text = data if isinstance(data, str) else dumps(data)
    return f"event: {event}\ndata: {text}\n\n" if event else f"data: {text}\n\n"


def json_answer(content: Any, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """200."""
    return JSONResponse(content, headers=dict(headers or {}))


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The work's result. When the client leaves, the work is cancelled; then ClientGone."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request.receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        await _end(gone)
        await _end(task)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancels and waits, so that what a generator holds is released now."""
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
    elif not task.cancelled():
        task.exception()  # it was seen, or nobody is there to see it


class Stream(Response):
    """A body that is made while it is sent, line by line.

    pieces: closed, and `release` awaited, when all is sent, the client leaves, or takes nothing for
    `write_timeout` seconds. comment: sent when there was nothing for `ping` seconds.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[str, None],
        settings: ServerSettings,
        release: Callable[[], Awaitable[None]],
        *,
        media_type: str = "text/event-stream; charset=utf-8",
        headers: Mapping[str, str] | None = None,
        comment: str | None = ": waiting\n\n",
    ) -> None:
        self.status_code = 200
        self.background = None
        self._pieces = pieces
        self._settings = settings
        self._release = release
        self._comment = comment
        self.init_headers(
            {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
        )
        self.headers["Content-Type"] = media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            await _end(gone)
            await _end(sending)
            await self._pieces.aclose()
            await self._release()  # a generator that never began would release nothing

    async def _send(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        following: asyncio.Future[str] | None = None
        try:
            while True:
                if following is None:
                    following = asyncio.ensure_future(anext(self._pieces))
                wait = self._settings.ping if self._comment else None
                done, _ = await asyncio.wait((following,), timeout=wait)
                if not done:
                    await self._write(send, self._comment or "")
                    continue
                try:
                    piece = following.result()
                except StopAsyncIteration:
                    break
                finally:
                    following = None
                await self._write(send, piece)
        finally:
            if following is not None:
                await _end(following)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, piece: str) -> None:
        message = {"type": "http.response.body", "body": piece.encode("utf-8"), "more_body": True}
        try:
            await asyncio.wait_for(send(message), self._settings.write_timeout)
        except asyncio.TimeoutError:
            raise ClientGone from None
