"""OpenAI's `/v1/models`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from pumice.server.context import ServerContext
from pumice.server.core.embed import DEFAULT_POOLING
from pumice.server.errors import ApiError


def make_router(context: ServerContext) -> APIRouter:
    router = APIRouter(tags=["OpenAI"])
    hidden = context.engine.engine.limits.hidden_size
    # A causal model, so what it makes is not what a model trained for embeddings makes.
    embeddings = {"model": "causal", "pooling": DEFAULT_POOLING, "dimensions": hidden}

    def entry(name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": context.created,
            "owned_by": "pumice",
            "root": context.name,
            "max_model_len": context.room,
            "embeddings": embeddings if hidden else None,
        }

    @router.get("/v1/models", summary="What is served.")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry(name) for name in context.settings.names]}

    @router.get("/v1/models/{name:path}", summary="One model.")
    async def model(name: str) -> dict[str, Any]:
        if name not in context.settings.names:
            raise ApiError(
                404, f"the model {name!r:.100} is not served here", code="model_not_found"
            )
        return entry(name)

    return router
