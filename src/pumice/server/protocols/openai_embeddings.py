"""OpenAI's `/v1/embeddings`."""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from pumice.server.body import json_router
from pumice.server.context import ServerContext
from pumice.server.core.embed import embed
from pumice.server.protocols.fields import Fields, check_model, prompts_of
from pumice.server.responses import json_answer, unless_gone


class EmbeddingRequest(Fields):
    input: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1, description="The model's own width, or nothing.")
    user: str | None = None
    pooling: Literal["mean", "last"] | None = Field(
        None, description="Ours: of the last hidden states of all tokens, or the last token's."
    )


def make_router(context: ServerContext) -> APIRouter:
    router = json_router(context, "OpenAI")

    @router.post("/v1/embeddings", summary="Vectors of texts.")
    async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
        check_model(context, body.model)
        return await unless_gone(request, _answer(context, body))

    return router


async def _answer(context: ServerContext, body: EmbeddingRequest) -> Response:
    prompts = prompts_of(body.input, "input")
    vectors, count = await embed(context, prompts, pooling=body.pooling, dimensions=body.dimensions)
    data = [
        {"object": "embedding", "index": i, "embedding": _written(vector, body.encoding_format)}
        for i, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return json_answer({"object": "list", "data": data, "model": context.name, "usage": usage})


def _written(vector: np.ndarray, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
