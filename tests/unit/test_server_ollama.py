"""Ollama's protocol: chat, generate, lists."""

from __future__ import annotations

from typing import Any

import pytest
from server_app import USER, client

TEXT = "the quick brown fox jumps"


def test_ollama_chat_and_stream() -> None:
    server = client(TEXT)
    whole = server.post("/api/chat", {"model": "toy", "messages": USER, "stream": False}).json
    assert whole["message"] == {"role": "assistant", "content": TEXT} and whole["done"] is True
    lines = server.post("/api/chat", {"model": "toy:latest", "messages": USER}).data
    assert "".join(line["message"]["content"] for line in lines) == TEXT
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    last = lines[-1]
    assert last["done_reason"] == "stop" and last["eval_count"] == whole["eval_count"]
    assert last["total_duration"] >= last["eval_duration"] > 0
    assert last["prompt_eval_duration"] > 0


def test_ollama_generate() -> None:
    server = client(TEXT)
    body = {"model": "toy", "prompt": "the dog", "system": "short", "stream": False}
    assert server.post("/api/generate", body).json["response"] == TEXT
    body = {"model": "toy", "prompt": "the", "raw": True, "stream": False}
    raw = server.post("/api/generate", {**body, "options": {"num_predict": 3}}).json
    assert (raw["eval_count"], raw["done_reason"]) == (3, "length")
    loaded = server.post("/api/generate", {"model": "toy"}).json
    assert (loaded["done"], loaded["done_reason"], loaded["response"]) == (True, "load", "")


def test_ollama_lists() -> None:
    server = client(TEXT)
    assert server.get("/api/tags").json["models"][0]["name"] == "toy"
    assert server.get("/api/ps").json["models"][0]["context_length"] == 400
    assert server.get("/api/version").json["version"] == server.get("/version").json["version"]
    shown = server.post("/api/show", {"model": "toy"}).json
    assert "completion" in shown["capabilities"] and "im_start" in shown["template"]


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({"model": "other"}, 404, "other"),
        ({"options": {"mirostat": 2}}, 400, "mirostat"),
        ({"options": {"num_ctx": 10**6}}, 400, "num_ctx"),
        ({"options": {"bogus": 1}}, 400, "bogus"),
        ({"think": True}, 400, "think"),
        ({"messages": [{"role": "user", "images": ["x"]}]}, 400, "images"),
    ],
)
def test_bad_ollama_requests(change: dict[str, Any], status: int, word: str) -> None:
    answer = client(TEXT).post("/api/chat", {"model": "toy", "messages": USER, **change})
    assert answer.status == status and word in answer.json["error"]
