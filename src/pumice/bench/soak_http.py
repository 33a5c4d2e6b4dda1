"""As much of HTTP/1.1 as a client needs that wants to break off wherever it likes."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Answer:
    """A whole answer. body: without the transfer's chunks."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")


class Connection:
    """One request's connection to the loopback."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._chunked = False

    async def send(
        self, method: str, path: str, body: bytes = b"", *, length: int | None = None
    ) -> None:
        """Sends a request. length: what it says that the body has; None: the truth."""
        size = len(body) if length is None else length
        head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n"
        if method == "POST":
            head += f"Content-Type: application/json\r\nContent-Length: {size}\r\n"
        self._writer.write(head.encode() + b"\r\n" + body)
        await self._writer.drain()

    async def head(self) -> int:
        """Reads the answer's head; returns its status."""
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (h.partition(":") for h in lines[1:])
        }
        self._chunked = headers.get("transfer-encoding", "") == "chunked"
        return int(lines[0].split()[1])

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it comes. IncompleteReadError when it breaks off."""
        if not self._chunked:
            while data := await self._reader.read(65536):
                yield data
            return
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readuntil(b"\r\n")

    def kill(self) -> None:
        """Breaks off at once, with a reset instead of an end (RST)."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


@asynccontextmanager
async def connection(port: int) -> AsyncIterator[Connection]:
    """A connection that is closed at the end, whatever is under way."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=1 << 22)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass  # it was killed, by us or by the server


async def exchange(port: int, method: str, path: str, body: bytes = b"") -> Answer:
    """One request and its whole answer."""
    async with connection(port) as line:
        await line.send(method, path, body)
        status = await line.head()
        return Answer(status, b"".join([part async for part in line.parts()]))


async def events(line: Connection) -> AsyncIterator[dict[str, Any] | None]:
    """The chunks of a stream; None for its [DONE]."""
    rest = b""
    async for part in line.parts():
        *whole, rest = (rest + part).split(b"\n\n")
        for event in whole:
            data = event.removeprefix(b"data: ")
            if data == b"[DONE]":
                yield None
            elif event.startswith(b"data: "):
                yield json.loads(data)
