"""A request's body: read whole before anything else happens, within a size and a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute, APIRouter
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pumice.server.context import ServerContext
from pumice.server.errors import ApiError, bad_request


class BodyLimit:
    """ASGI middleware. 413 for a body over the limit, said before it is read where the client names
    its size; 408 for one that does not arrive in time.
    """

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._most = context.settings.max_body
        self._timeout = context.settings.body_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > self._most:
            raise self._too_large()
        try:
            body = await asyncio.wait_for(self._read(receive), self._timeout)
        except asyncio.TimeoutError:
            raise ApiError(
                408, f"the body was not whole after {self._timeout:g} s", headers=_CLOSE
            ) from None
        if body is None:  # the client left before its request was whole
            return
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        await self._app(scope, replay, send)

    async def _read(self, receive: Receive) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            size += len(part)
            if size > self._most:
                raise self._too_large()
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is too large; {self._most:,} bytes are allowed")


_CLOSE = {"Connection": "close"}


class JsonRoute(APIRoute):
    """A route whose body is JSON whatever its content type says: `curl -d` says another one."""

    max_depth: int

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        depth = self.max_depth

        async def handle(request: Request) -> Response:
            headers = [(k, v) for k, v in request.scope["headers"] if k != b"content-type"]
            headers.append((b"content-type", b"application/json"))
            strict = _StrictRequest({**request.scope, "headers": headers}, request.receive)
            strict.max_depth = depth
            return await handler(strict)

        return handle


def json_router(context: ServerContext, tag: str) -> APIRouter:
    """A router of such routes. tag: the protocol's name, for the description of the API."""
    depth = context.settings.max_json_depth
    return APIRouter(route_class=type("Route", (JsonRoute,), {"max_depth": depth}), tags=[tag])


_LONG = 256 << 10  # bytes whose parsing would hold others up


class _StrictRequest(Request):
    max_depth: int

    async def json(self) -> Any:
        body = await self.body()
        if len(body) < _LONG:
            return parse_json(body, self.max_depth)
        return await asyncio.to_thread(parse_json, body, self.max_depth)


def parse_json(body: bytes, max_depth: int) -> Any:
    """RFC 8259, without its extensions in Python's parser: no NaN, and no half surrogate pairs.

    400 when it is malformed or nested deeper than max_depth.
    """
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not UTF-8: byte {error.start} is wrong") from None
    except json.JSONDecodeError as error:
        raise bad_request(
            f"the body is no JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    except ValueError as error:  # a constant of the above, or a number of thousands of digits
        raise bad_request(f"the body is no JSON: {str(error).splitlines()[0]:.120}") from None
    _check_values(value, max_depth, surrogates=b"\\ud" in body.lower())
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _check_values(value: Any, max_depth: int, *, surrogates: bool) -> None:
    level = [value]
    for _ in range(max_depth + 1):
        deeper: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                if surrogates:
                    _check_texts(item)
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
            elif surrogates and isinstance(item, str):
                _check_texts((item,))
        if not deeper:
            return
        level = deeper
    raise _too_deep(max_depth)


def _check_texts(texts: Any) -> None:
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise bad_request("a string holds half a surrogate pair, which is no text") from None


def _too_deep(max_depth: int) -> ApiError:
    return bad_request(f"the body is nested too deep; {max_depth} levels are allowed")
