"""OpenAI's `/v1/embeddings`."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from pumice.server.body import json_router
from pumice.server.context import Embedder, ServerContext
from pumice.server.core.job import Job
from pumice.server.core.prompt import encode
from pumice.server.errors import ApiError, unsupported
from pumice.server.protocols.fields import Fields, check_choices, check_model, prompts_of
from pumice.server.responses import json_answer, unless_gone


class EmbeddingRequest(Fields):
    """input: texts or token ids. pooling, ours: over a causal model's last hidden states."""

    input: str | list[str] | list[int] | list[list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = Field(None, ge=1)
    user: str | None = None
    pooling: Literal["mean", "last"] | None = None


def make_router(context: ServerContext) -> APIRouter:
    router = json_router(context, "OpenAI")

    @router.post("/v1/embeddings", summary="Vectors of texts.")
    async def embeddings(request: Request, body: EmbeddingRequest) -> Response:
        check_model(context, body.model)
        return await unless_gone(request, _answer(context, body, request.state.salt))

    return router


async def _answer(context: ServerContext, body: EmbeddingRequest, salt: bytes) -> Response:
    embedder = embedder_of(context)
    if body.dimensions is not None:
        raise unsupported("dimensions", f"{context.name} was not trained to be cut")
    prompts = prompts_of(body.input, "input")
    check_choices(context, len(prompts), "input")
    ids = [
        (await asyncio.to_thread(encode, context, Job(prompt=prompt, salt=salt))).ids
        for prompt in prompts
    ]
    vectors = await embedder.embed(ids, body.pooling or "last")
    data = [
        {"object": "embedding", "index": i, "embedding": _written(vector, body.encoding_format)}
        for i, vector in enumerate(vectors)
    ]
    count = sum(map(len, ids))
    usage = {"prompt_tokens": count, "total_tokens": count}
    return json_answer({"object": "list", "data": data, "model": context.name, "usage": usage})


def embedder_of(context: ServerContext) -> Embedder:
    """501 when there is none: a compiled step returns logits, and no hidden states."""
    if context.embedder is None:
        raise ApiError(
            501,
            f"embeddings need {context.name}'s hidden states; its compiled step has logits only",
            code="not_implemented",
        )
    return context.embedder


def _written(vector: np.ndarray, form: str | None) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
