"""Answers that take time: streams, and answers whose client may leave before they are ready."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from pumice.server.settings import ServerSettings

T = TypeVar("T")
_quoted = json.JSONEncoder(ensure_ascii=False).encode


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def dumps(value: Any) -> str:
    """Compact JSON, as UTF-8 and not as escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def sse(data: Mapping[str, Any] | str, event: str | None = None) -> str:
    """A server-sent event (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    text = data if isinstance(data, str) else dumps(data)
    return f"event: {event}\ndata: {text}\n\n" if event else f"data: {text}\n\n"


class Pattern:
    """Pieces of a stream that differ in one text: what is around it is written once.

    `fill` gives what `make` would: a piece for that text, which stands in it as a JSON string.
    """

    def __init__(self, make: Callable[[str], str]) -> None:
        mark = uuid.uuid4().hex
        self._before, self._after = make(mark).split(f'"{mark}"')

    def fill(self, text: str) -> str:
        return f"{self._before}{_quoted(text)}{self._after}"


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
        self._clock = asyncio.get_running_loop().time
        self._wrote = self._clock()
        self._writing_since: float | None = None
        self.init_headers(
            {"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})}
        )
        self.headers["Content-Type"] = media_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        others = [asyncio.ensure_future(_disconnect(receive)),
                  asyncio.ensure_future(self._watch(send))]  # fmt: skip
        try:
            await asyncio.wait((sending, *others), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
                return
            raise ClientGone
        finally:
            for task in (*others, sending):
                await _end(task)
            await self._pieces.aclose()
            await self._release()  # a generator that never began would release nothing

    async def _send(self, send: Send) -> None:
        head = {"type": "http.response.start", "status": self.status_code}
        await send({**head, "headers": self.raw_headers})
        async for piece in self._pieces:
            await self._write(send, piece)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, send: Send, piece: str) -> None:
        body = piece.encode("utf-8")
        self._writing_since = self._clock()
        await send({"type": "http.response.body", "body": body, "more_body": True})
        self._writing_since, self._wrote = None, self._clock()

    async def _watch(self, send: Send) -> None:
        """Says that there is life while there is nothing to say; ends when nobody reads."""
        while True:
            await asyncio.sleep(min(self._settings.ping, self._settings.write_timeout) / 4)
            now = self._clock()
            if self._writing_since is not None:
                if now - self._writing_since > self._settings.write_timeout:
                    return
            elif self._comment and now - self._wrote > self._settings.ping:
                await self._write(send, self._comment)
