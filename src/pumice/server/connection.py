"""HTTP/1.1 connections that do not wait for ever: for a head that drips in (slow loris), or for a
reader who does not read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_TIMEOUT = 10.0


class Connection(H11Protocol):
    """Ended when a request's head is not whole `head_timeout` seconds after the connection was made
    or the head began, and when what was written last is not taken for as long after its end.
    """

    head_timeout = HEAD_TIMEOUT

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._busy:
            self._disarm()
        elif self._watch is None:
            self._arm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._arm()
        elif self._busy:
            self._disarm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    @property
    def _busy(self) -> bool:
        """Whether a request's head is here and its answer is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _arm(self) -> None:
        self._disarm()
        self._watch = self.loop.call_later(self.head_timeout, self._expire)

    def _disarm(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _expire(self) -> None:
        self._watch = None
        if not self._busy:
            self.transport.abort()


def connection_class(head_timeout: float) -> type[Connection]:
    """A class, since that is what uvicorn takes."""
    return type("Connection", (Connection,), {"head_timeout": head_timeout})
