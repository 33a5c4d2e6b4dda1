"""The application: routes of every protocol behind one guard."""

from __future__ import annotations

import asyncio
import importlib

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from pumice._version import __version__
from pumice.server.access import Access, error_answer
from pumice.server.body import BodyLimit
from pumice.server.context import ServerContext
from pumice.server.guard import Guard
from pumice.server.protocols import ROUTERS
from pumice.server.validation import explain


def create_app(context: ServerContext) -> FastAPI:
    """An ASGI application over a running engine; the engine's end is the caller's."""
    settings = context.settings
    middleware = []
    if settings.cors_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(settings.cors_origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
            )
        )
    # Errors pass through CORS, too: a page is to see what went wrong.
    middleware += [Middleware(m, context) for m in (Access, Guard, BodyLimit)]
    app = FastAPI(
        title="Pumice",
        version=__version__,
        summary="Open language models in the protocols of OpenAI, Anthropic and Ollama.",
        middleware=middleware,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
    )

    async def failed(request: Request, error: Exception) -> Response:
        return error_answer(error, request.url.path, context)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return error_answer(explain(error.errors(), error.body), request.url.path, context)

    async def openapi(_: Request) -> Response:
        # The first time takes long enough to be felt by streams that run.
        return JSONResponse(await asyncio.to_thread(app.openapi))

    app.add_route("/openapi.json", openapi, include_in_schema=False)
    app.add_exception_handler(HTTPException, failed)
    app.add_exception_handler(RequestValidationError, invalid)
    for name in ROUTERS:
        module, _, function = name.partition(":")
        app.include_router(getattr(importlib.import_module(module), function)(context))
    return app
