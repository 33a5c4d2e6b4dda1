"""What Ollama's clients ask of a server: its models, and their vectors."""

from __future__ import annotations

import datetime
import time
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from pumice._version import __version__
from pumice.server.body import json_router
from pumice.server.context import ServerContext
from pumice.server.core.embed import embed as embed_texts
from pumice.server.errors import bad_request
from pumice.server.protocols.fields import Fields, check_model
from pumice.server.responses import json_answer, unless_gone


class ShowRequest(Fields):
    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


class EmbedRequest(Fields):
    model: str
    input: str | list[str]
    truncate: bool | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None
    dimensions: int | None = Field(None, ge=1, description="The model's own width, or nothing.")


class EmbeddingsRequest(Fields):
    model: str
    prompt: str
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None


def make_router(context: ServerContext) -> APIRouter:
    router = json_router(context, "Ollama")
    info = context.model_info
    since = datetime.datetime.fromtimestamp(context.created, datetime.timezone.utc).isoformat()
    details = {
        "parent_model": "",
        "format": "pumice",
        "family": str(info.get("architecture", "")),
        "families": [str(info.get("architecture", ""))],
        "parameter_size": _short(int(info.get("parameters", 0))),
        "quantization_level": str(info.get("quantization", "")),
    }

    def entry(name: str) -> dict[str, Any]:
        return {
            "name": name,
            "model": name,
            "modified_at": since,
            "size": int(info.get("weight_bytes", 0)),
            "digest": str(info.get("digest", "")),
            "details": details,
        }

    @router.get("/api/tags", summary="What is served.")
    async def tags() -> dict[str, Any]:
        return {"models": [entry(name) for name in context.settings.names]}

    @router.get("/api/ps", summary="What is loaded: all that is served.")
    async def loaded() -> dict[str, Any]:
        never = "9999-12-31T00:00:00+00:00"
        more = {"expires_at": never, "size_vram": 0, "context_length": context.room}
        return {"models": [entry(name) | more for name in context.settings.names]}

    @router.get("/api/version", summary="Pumice's version.")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    @router.post("/api/show", summary="What is known of a model.")
    async def show(body: ShowRequest) -> dict[str, Any]:
        name = body.model or body.name
        if not name:
            raise bad_request("model is missing", "model")
        check_model(context, name)
        family = details["family"]
        hidden = context.engine.engine.limits.hidden_size
        width = {f"{family}.embedding_length": hidden} if hidden else {}
        capabilities = ["completion"]
        if "tools" in (context.tokenizer.chat_template or ""):
            capabilities.append("tools")
        if "think>" in (context.tokenizer.chat_template or ""):
            capabilities.append("thinking")
        return {
            "modified_at": since,
            "template": context.tokenizer.chat_template or "",
            "modelfile": f"FROM {context.name}\n",
            "parameters": "\n".join(f"{k} {v}" for k, v in context.tokenizer.sampling.items()),
            "license": "",
            "details": details,
            "model_info": {
                "general.architecture": family,
                "general.parameter_count": int(info.get("parameters", 0)),
                f"{family}.context_length": int(info.get("context_length", context.room)),
                **width,
            },
            "capabilities": capabilities,
        }

    @router.post("/api/embed", summary="Vectors of texts.")
    async def embed(request: Request, body: EmbedRequest) -> Response:
        begun = time.perf_counter_ns()
        check_model(context, body.model)
        texts = [body.input] if isinstance(body.input, str) else body.input
        work = embed_texts(
            context, texts, dimensions=body.dimensions, truncate=body.truncate is True
        )
        vectors, count = await unless_gone(request, work)
        return json_answer(
            {
                "model": context.name,
                "embeddings": vectors.tolist(),
                "total_duration": time.perf_counter_ns() - begun,
                "load_duration": 0,
                "prompt_eval_count": count,
            }
        )

    @router.post("/api/embeddings", summary="The vector of a text, as older clients ask.")
    async def embeddings(request: Request, body: EmbeddingsRequest) -> Response:
        check_model(context, body.model)
        vectors, _ = await unless_gone(request, embed_texts(context, [body.prompt]))
        return json_answer({"embedding": vectors[0].tolist()})

    return router


def _short(count: int) -> str:
    """134515008 → 134.5M."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)
