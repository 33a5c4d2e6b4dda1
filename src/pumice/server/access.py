"""The outermost layer: an id and a line for every request, and an answer to every exception."""

from __future__ import annotations

import logging
import sys
import time
import traceback
import uuid
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pumice.server.context import ServerContext
from pumice.server.errors import ApiError, body_of, from_exception
from pumice.server.responses import ClientGone
from pumice.server.tally import TALLY, Tally

GONE = 499  # in the log and the figures: the client left, as nginx has it
log = logging.getLogger("pumice.server")


class Access:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.perf_counter()
        tally = Tally()
        TALLY.set(tally)
        status, gone = 0, False
        name = uuid.uuid4().hex

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [*message.get("headers", ()), (b"x-request-id", name.encode()),
                           (b"request-id", name.encode())]  # fmt: skip
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except ClientGone:
            gone = True
        except Exception as error:
            if status == 0:
                await self._tell(error, scope, receive, watched)
            else:
                log.error("the answer broke off", exc_info=error)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            if gone or status == 0:
                status = GONE
            self._context.metrics.answered(scope["method"], route, status)
            if self._context.settings.access_log:
                self._line(scope, status, time.perf_counter() - start, tally)

    async def _tell(self, error: Exception, scope: Scope, receive: Receive, send: Send) -> None:
        await error_answer(error, scope["path"], self._context)(scope, receive, send)

    @staticmethod
    def _line(scope: Scope, status: int, seconds: float, tally: Tally) -> None:
        client = (scope.get("client") or ("-",))[0]
        path = scope["path"].encode("unicode_escape").decode()[:200]
        clock = time.strftime("%H:%M:%S")
        try:
            print(
                f"{clock} {client} {scope['method']} {path} {status} {seconds:.3f} s{tally}",
                file=sys.stderr,
                flush=True,
            )
        except (OSError, ValueError):  # a full disk or a closed pipe: the request matters more
            pass


def error_answer(error: BaseException, path: str, context: ServerContext) -> JSONResponse:
    """An exception as its protocol's answer. What is nobody's fault but ours goes to the log."""
    told = from_exception(error, retry_after=context.settings.retry_after)
    if told.status >= 500 and not isinstance(error, ApiError):
        _log(error)
    body: Any = body_of(told, path)
    return JSONResponse(body, told.status, headers=dict(told.headers or {}))


def _log(error: BaseException) -> None:
    try:
        log.error("".join(traceback.format_exception(error)))
    except OSError:
        pass
