"""An HTTP/1.1 client that costs the server beside it little: a benchmark's load and the server that
is measured often share their processors.

A part of an answer that arrives is stored with its time and looked at when all are there.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from pumice.errors import UsageError


@dataclass
class Answer:
    """status: 0 when none came. parts: (`time.perf_counter`, piece of the body), as they came.
    whole: the body was there to its end. error: what happened to the connection, if not.
    """

    status: int = 0
    parts: list[tuple[float, bytes]] = field(default_factory=list)
    whole: bool = False
    error: str | None = None

    @property
    def body(self) -> bytes:
        return b"".join(part for _, part in self.parts)


class Client:
    """Requests to one server, each on a connection of its own that a later one uses again.

    A context manager: its end closes all connections.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float) -> None:
        """url: scheme, host and the path before every request's. timeout: seconds of silence.

        UsageError when it is no such URL.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"{url!r} is no URL of a server: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is no URL of a server; http://127.0.0.1:8000 is one")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, port or (443 if self._tls else 80)
        self._path = parts.path
        lines = {"Host": parts.netloc.rpartition("@")[2], **headers}
        for name, value in lines.items():
            if not value.isascii() or not value.isprintable():
                raise UsageError(f"{name} is {value!r}; a header holds printable ASCII")
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._timeout = timeout
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        for connection in self._open:
            connection.abort()

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        """A request and all of its answer. What goes wrong is in the answer."""
        lines = f"{method} {self._path}{path} HTTP/1.1\r\n{self._head}"
        if body is not None:
            lines += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                break
        else:
            try:
                connection = await self._connect()
            except (OSError, asyncio.TimeoutError) as error:
                return Answer(error=type(error).__name__)
            self._open.add(connection)
        try:
            answer = await connection.exchange(lines.encode("latin-1") + b"\r\n" + (body or b""))
        except BaseException:
            connection.abort()
            raise
        finally:
            if connection.closed:
                self._open.discard(connection)
        if not connection.closed:
            self._idle.append(connection)
        return answer

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        making = loop.create_connection(
            lambda: _Connection(self._timeout), self._host, self._port, ssl=self._tls
        )
        _, connection = await asyncio.wait_for(making, self._timeout)
        return connection


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, timeout: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None
        self._answer = Answer()
        self._done: asyncio.Future[None] | None = None
        self._now = 0.0
        self.closed = False

    async def exchange(self, request: bytes) -> Answer:
        import httptools

        self._answer, self._done = Answer(), self._loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._now = time.perf_counter()
        self._transport.write(request)
        self._watch()
        try:
            await self._done
        finally:
            if self._timer is not None:
                self._timer.cancel()
        return self._answer

    def abort(self) -> None:
        self.closed = True
        self._transport.abort()

    def _watch(self) -> None:
        left = self._now + self._timeout - time.perf_counter()
        if left <= 0:
            self._end(f"nothing came for {self._timeout:g} s")
        else:
            self._timer = self._loop.call_later(left, self._watch)

    def _end(self, error: str | None = None) -> None:
        """The exchange is over; after an error the connection is, too."""
        if self._done is not None and not self._done.done():
            self._answer.error = error
            self._done.set_result(None)
        if error is not None:
            self.abort()

    # asyncio's

    def connection_made(self, transport: Any) -> None:
        self._transport: asyncio.Transport = transport

    def data_received(self, data: bytes) -> None:
        import httptools

        if self._done is None or self._done.done():  # nobody has asked for it
            self.abort()
            return
        self._now = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._end("the answer is no HTTP")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._end(type(exc).__name__ if exc else "the connection was closed")

    # The parser's

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._answer.parts.append((self._now, body))

    def on_message_complete(self) -> None:
        if self._answer.status < 200:  # "100 Continue" and the like
            return
        self._answer.whole = True
        if not self._parser.should_keep_alive():
            self.abort()
        self._end()
