"""HTTP/1.1 connections that do not wait for ever: for a head that drips in (slow loris), or for a
reader who does not read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_TIMEOUT = 10.0
_MOST_HEAD = 64 << 10  # bytes of a request's head: the parser knows no bound


class Connection(HttpToolsProtocol):
    """Ended when a request's head is not whole `head_timeout` seconds after the connection was made
    or the head began, and when what was written last is not taken in as much time.
    """

    head_timeout = HEAD_TIMEOUT

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._timer: asyncio.TimerHandle | None = None
        self._head_since: float | None = None
        self._closing_since: float | None = None
        self._in_head = False
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_since = self.loop.time()
        self._check()

    def data_received(self, data: bytes) -> None:
        went_on = self._in_head
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if went_on and self._in_head else 0
        if self._head_bytes > _MOST_HEAD:
            self._in_head = False
            self.send_400_response("The request's head is too large.")
        if self._busy:
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self.loop.time()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._head_since = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    @property
    def _busy(self) -> bool:
        """Whether a request's head is here and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _check(self) -> None:
        now = self.loop.time()
        if self.transport.is_closing() and self._closing_since is None:
            self._closing_since = now
        for since in (self._head_since, self._closing_since):
            if since is not None and now - since >= self.head_timeout:
                self.transport.abort()
                return
        self._timer = self.loop.call_later(self.head_timeout / 4, self._check)


def connection_class(head_timeout: float) -> type[Connection]:
    """A class, since that is what uvicorn takes."""
    return type("Connection", (Connection,), {"head_timeout": head_timeout})
