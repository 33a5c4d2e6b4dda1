"""Anthropic's protocol: messages, streams, stops, results in the history."""

from __future__ import annotations

from typing import Any

import pytest
from server_app import USER, Client, client, make_engine

TEXT = "the quick brown fox jumps"
MESSAGES = "/v1/messages"


def ask_anthropic(server: Client, **change: Any) -> Any:
    return server.post(MESSAGES, {"model": "toy", "max_tokens": 50, "messages": USER, **change})


def test_anthropic_message_and_stream() -> None:
    server = client(TEXT)
    answer = ask_anthropic(server, system=[{"type": "text", "text": "short"}])
    body = answer.json
    assert body["content"] == [{"type": "text", "text": TEXT}] and body["type"] == "message"
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    stream = ask_anthropic(server, stream=True)
    kinds = [e["type"] for e in stream.data]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [e["delta"]["text"] for e in stream.data if e["type"] == "content_block_delta"]
    assert "".join(deltas) == TEXT
    assert all(f"event: {kind}\n" in stream.text for kind in kinds)
    usage = ask_anthropic(server).json["usage"]
    counted = server.post(f"{MESSAGES}/count_tokens", {"model": "toy", "messages": USER})
    assert counted.json["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_anthropic_stops() -> None:
    server = client(TEXT)
    body = ask_anthropic(server, stop_sequences=["brown"]).json
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "brown")
    assert body["content"][0]["text"] == "the quick "
    assert ask_anthropic(server, max_tokens=1).json["stop_reason"] == "max_tokens"
    endless = client(engine=make_engine("ab ", then_end=False))
    body = ask_anthropic(endless, max_tokens=10**6).json
    assert body["stop_reason"] == "model_context_window_exceeded"


def test_anthropic_results_and_thinking_in_the_history() -> None:
    messages = [
        *USER,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "I look.", "cache_control": {"type": "ephemeral"}},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": True,
             "content": [{"type": "text", "text": "fox"}]},
            {"type": "text", "text": "well?"}]},
    ]  # fmt: skip
    assert ask_anthropic(client(TEXT), messages=messages).status == 200


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": 1.5}, "temperature"),
        ({"mcp_servers": []}, "mcp_servers"),
        ({"bogus": 1}, "bogus"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"messages": []}, "messages"),
    ],
)
def test_bad_anthropic_requests(change: dict[str, Any], word: str) -> None:
    answer = ask_anthropic(client(TEXT), **change)
    assert answer.status == 400 and answer.json["type"] == "error"
    assert answer.error["type"] == "invalid_request_error" and word in answer.error["message"]
