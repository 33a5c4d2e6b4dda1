"""`/health`, `/metrics`, `/version`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from pumice._version import __version__
from pumice.server.context import ServerContext


def make_router(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["status"])

    @router.get("/health", summary="Whether requests are taken. Needs no key.")
    async def health() -> JSONResponse:
        if context.draining:
            return JSONResponse({"status": "ending"}, 503, headers={"Retry-After": "5"})
        return JSONResponse({"status": "ok"})

    @router.get("/version", summary="Pumice's version.")
    async def version() -> dict[str, Any]:
        return {"version": __version__}

    @router.get("/metrics", summary="Figures for Prometheus.")
    async def metrics() -> Response:
        from prometheus_client import CONTENT_TYPE_LATEST

        return Response(context.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return router
