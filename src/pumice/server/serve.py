"""From a loaded engine to a process that serves: the socket, the signals, the end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from typing import Any

import uvicorn

from pumice.engine.async_engine import AsyncEngine
from pumice.engine.engine import LLMEngine
from pumice.errors import UsageError
from pumice.server.app import create_app
from pumice.server.connection import connection_class
from pumice.server.context import ServerContext
from pumice.server.settings import ServerSettings

_AFTER_DRAIN = 5.0  # seconds for what was told at the end to be read


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens later; port 0 takes a free one.

    UsageError when the port is in use or may not be used, or the host is not an address of this
    machine.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"port is {port}; allowed: 0 (a free one) to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"host {host!r} has no address: {error}", hint="--host 127.0.0.1 is this machine alone."
        ) from None
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} of {host} is in use", hint="--port 0 takes a free one."
            ) from None
        raise UsageError(f"{host} port {port} cannot be used: {error.strerror}") from None
    sock.setblocking(False)
    return sock


class Server(uvicorn.Server):
    """Ends gracefully at SIGTERM or SIGINT: takes nothing new, lets what runs finish for
    `drain_timeout` seconds, tells the rest that it was cut off. A second SIGINT ends it at once.
    """

    def __init__(self, config: uvicorn.Config, context: ServerContext) -> None:
        super().__init__(config)
        self._context = context
        self.on_drain: Callable[[], None] = lambda: None

    @property
    def ended_by(self) -> int | None:
        """The first signal that asked for the end."""
        return self._captured_signals[0] if self._captured_signals else None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """As uvicorn's, but a signal that was handled is not raised again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {s: signal.signal(s, self.handle_exit) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._context.draining = True
        self.on_drain()
        draining = asyncio.ensure_future(self._context.drain())
        await super().shutdown(sockets)
        if self.force_exit:
            draining.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await draining


async def serve(
    engine: LLMEngine,
    settings: ServerSettings,
    sock: socket.socket,
    *,
    model_info: dict[str, Any] | None = None,
    on_start: Callable[[Server], None] = lambda _: None,
    on_drain: Callable[[], None] = lambda: None,
) -> int | None:
    """Serves until a signal, or until `Server.should_exit` is set. Returns the signal.

    The signal is not raised again: how the process ends is for the caller to say.
    """
    logging.getLogger("pumice.server").setLevel(logging.WARNING)
    async with AsyncEngine(engine) as running:
        context = ServerContext(running, settings, model_info=model_info)
        config = uvicorn.Config(
            create_app(context),
            http=connection_class(settings.header_timeout),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="critical",
            server_header=False,
            timeout_keep_alive=max(1, round(settings.keep_alive)),
            timeout_graceful_shutdown=max(1, round(settings.drain_timeout + _AFTER_DRAIN)),
        )
        server = Server(config, context)
        server.on_drain = on_drain
        on_start(server)
        await server.serve([sock])
        return server.ended_by
