"""/v1/embeddings and Ollama's routes, with the official clients on a simulated model."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest
from embedding_toy import WIDTH, expected, make_embedder
from engine_toy import limits, tokenizer
from server_app import Client, client, idle_after

from pumice.engine import AsyncEngine
from pumice.server.app import create_app
from pumice.server.context import ServerContext
from pumice.server.settings import ServerSettings

TEXTS = ["the quick brown fox", "a lazy dog", "jumps"]
ROUTE = "/v1/embeddings"


def ids_of(text: str) -> list[int]:
    return tokenizer().with_prefix(tokenizer().encode(text, add_special=False, parse_special=False))


def server(**settings: Any) -> Client:
    return client(engine=make_embedder(limits(num_blocks=200))[0], **settings)


def with_openai(work: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> Any:
    """Runs `work` with the official client on an application."""
    inner, _ = make_embedder(limits(num_blocks=200))

    async def main() -> Any:
        async with AsyncEngine(inner) as running:
            settings = ServerSettings(names=("toy",), access_log=False)
            transport = httpx.ASGITransport(create_app(ServerContext(running, settings)))
            http = httpx.AsyncClient(transport=transport)
            async with openai.AsyncOpenAI(
                base_url="http://localhost/v1", api_key="none", max_retries=0, http_client=http
            ) as gpt:
                return await work(gpt)

    with idle_after(inner):
        return asyncio.run(main())


def test_every_form_of_input_and_encoding() -> None:
    async def work(gpt: openai.AsyncOpenAI) -> list[Any]:
        answers = []
        forms: list[Any] = [TEXTS[0], TEXTS, ids_of(TEXTS[0]), [ids_of(t) for t in TEXTS]]
        for form in forms:
            more: Any
            for more in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
                answers.append(await gpt.embeddings.create(model="toy", input=form, **more))
        return answers

    answers = with_openai(work)
    for index, answer in enumerate(answers):
        texts = TEXTS if index // 3 % 2 else TEXTS[:1]
        assert answer.model == "toy" and answer.object == "list"
        assert [(e.index, e.object) for e in answer.data] == [
            (i, "embedding") for i in range(len(texts))
        ]
        for entry, text in zip(answer.data, texts, strict=True):
            given: Any = entry.embedding
            if isinstance(given, str):  # the client decodes only what it asked for by itself
                given = np.frombuffer(base64.b64decode(given), "<f4")
            np.testing.assert_allclose(given, expected(ids_of(text)), atol=1e-6)
            assert abs(np.linalg.norm(given) - 1) < 1e-5
        count = sum(len(ids_of(text)) for text in texts)
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (count, count)


def test_pooling_and_dimensions() -> None:
    async def work(gpt: openai.AsyncOpenAI) -> list[Any]:
        answers = [
            await gpt.embeddings.create(
                model="toy", input="the fox", extra_body={"pooling": pooling}, dimensions=WIDTH
            )
            for pooling in ("mean", "last")
        ]
        for bad in ({"dimensions": WIDTH - 1}, {"extra_body": {"pooling": "max"}},
                    {"extra_body": {"poling": "last"}}, {"model": "other"}):  # fmt: skip
            with pytest.raises((openai.BadRequestError, openai.NotFoundError)) as refused:
                await gpt.embeddings.create(**{"model": "toy", "input": "a", **bad})
            field = next(iter(bad.get("extra_body", bad)))
            assert field in refused.value.message and refused.value.param == field
        return answers

    for pooling, answer in zip(("mean", "last"), with_openai(work), strict=True):
        want = expected(ids_of("the fox"), pooling)
        np.testing.assert_allclose(answer.data[0].embedding, want, atol=1e-6)


def test_the_model_says_what_it_is() -> None:
    answer = server().get("/v1/models").json
    assert answer["data"][0]["embeddings"] == {
        "model": "causal", "pooling": "mean", "dimensions": WIDTH
    }  # fmt: skip
    assert client().get("/v1/models").json["data"][0]["embeddings"] is None
    shown = server().post("/api/show", {"model": "toy"}).json["model_info"]
    assert [v for k, v in shown.items() if k.endswith(".embedding_length")] == [WIDTH]


def test_what_does_not_fit() -> None:
    http = server()
    for tokens, status in ((64, 200), (65, 400)):
        answer = http.post(ROUTE, {"input": [[9], [9] * tokens]})
        assert answer.status == status
    assert answer.error["code"] == "context_length_exceeded"
    assert "65 tokens; the context holds 64" in answer.error["message"]
    for bad, word in (([], "empty"), ([10**6], "1000000"), ([[]], "empty")):
        answer = http.post(ROUTE, {"input": bad})
        assert answer.status == 400 and word in answer.error["message"], bad
    assert http.post(ROUTE, {"input": ["a", 1]}).status == 400
    few = server(max_embeddings=2)
    assert few.post(ROUTE, {"input": ["a", "b"]}).status == 200
    refused = few.post(ROUTE, {"input": ["a", "b", "c"]})
    assert refused.status == 400 and "3 items; 2 are allowed" in refused.text


def test_more_texts_than_the_queue_holds() -> None:
    engine, toy = make_embedder(limits(num_blocks=200), max_waiting=1)
    texts = [f"text {n}" for n in range(100)]
    data = client(engine=engine).post(ROUTE, {"input": texts}).json["data"]
    assert len(data) == 100 and max(s for _, s in toy.embedded) > 1
    for text, entry in zip(texts, data, strict=True):
        np.testing.assert_allclose(entry["embedding"], expected(ids_of(text)), atol=1e-6)


def test_ollama() -> None:
    http = server()
    answer = http.post("/api/embed", {"model": "toy:latest", "input": TEXTS})
    parsed = ollama.EmbedResponse(**answer.json)
    for vector, text in zip(parsed.embeddings, TEXTS, strict=True):
        np.testing.assert_allclose(vector, expected(ids_of(text)), atol=1e-6)
    assert parsed.prompt_eval_count == sum(len(ids_of(t)) for t in TEXTS)
    assert parsed.total_duration is not None and parsed.total_duration > 0
    old = http.post("/api/embeddings", {"model": "toy", "prompt": TEXTS[0]}).json
    np.testing.assert_allclose(old["embedding"], expected(ids_of(TEXTS[0])), atol=1e-6)
    long = "fox " * 200
    body = {"model": "toy", "input": long}
    refused = http.post("/api/embed", body)
    assert refused.status == 400 and "the context holds 64" in refused.json["error"]
    cut = http.post("/api/embed", {**body, "truncate": True, "dimensions": WIDTH}).json
    np.testing.assert_allclose(cut["embeddings"][0], expected(ids_of(long)[:64]), atol=1e-6)
    assert cut["prompt_eval_count"] == 64
    assert http.post("/api/embed", {**body, "dimensions": 3}).status == 400
