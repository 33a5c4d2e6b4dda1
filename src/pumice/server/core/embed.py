"""Inputs of embeddings to vectors, in no protocol's words."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import numpy as np

from pumice.server.context import ServerContext
from pumice.server.core.job import Job
from pumice.server.core.prompt import encode
from pumice.server.errors import ApiError, bad_request, unsupported

DEFAULT_POOLING: Literal["mean", "last"] = "mean"


async def embed(
    context: ServerContext,
    prompts: Sequence[str | list[int]],
    *,
    pooling: Literal["mean", "last"] | None = None,
    dimensions: int | None = None,
    truncate: bool = False,
) -> tuple[np.ndarray, int]:
    """Vectors float32[n, H] of length 1, and the number of tokens that were read.

    truncate: keep the beginning of an input that does not fit, instead of refusing it.
    501 when the compiled model has no hidden states; 400 for too many inputs, or for dimensions
    other than the model's own.
    """
    embedder = context.embedder
    if embedder is None:
        raise ApiError(
            501,
            f"embeddings need {context.name}'s hidden states; its compiled step has logits only",
            code="not_implemented",
        )
    width = context.engine.engine.limits.hidden_size
    if dimensions not in (None, width):
        raise unsupported(
            "dimensions", f"{context.name} has {width:,} and was not trained to be cut"
        )
    most = context.settings.max_embeddings
    if len(prompts) > most:
        raise bad_request(f"input has {len(prompts):,} items; {most:,} are allowed", "input")
    if not prompts:
        raise bad_request("input is an empty list", "input")
    jobs = [Job(prompt=p, generates=False, truncate=truncate) for p in prompts]
    ids = await asyncio.to_thread(lambda: [encode(context, job).ids for job in jobs])
    vectors = await embedder.embed(ids, pooling or DEFAULT_POOLING)
    return vectors, sum(map(len, ids))
