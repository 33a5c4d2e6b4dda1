"""OpenAI's chat: every field works or is refused by name; streams say what whole answers say."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server_app import USER, VOCAB, Client, client, make_engine

PATH = "/v1/chat/completions"
TEXT = "the quick brown fox jumps over 😀👩‍👩‍👧‍👦 the lazy dog"


def ask(server: Client, **body: Any) -> Any:
    return server.post(PATH, {"messages": USER, **body})


def whole(answer: Any) -> list[str]:
    assert answer.status == 200, answer.text
    return [choice["message"]["content"] for choice in answer.json["choices"]]


def streamed(answer: Any, n: int = 1) -> list[str]:
    assert answer.status == 200 and answer.text.endswith("data: [DONE]\n\n")
    texts = [""] * n
    for chunk in answer.data:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    return texts


def test_an_answer() -> None:
    server = client(TEXT)
    answer = ask(server, model="toy")
    body = answer.json
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    choice = body["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert choice["finish_reason"] == "stop" and choice["logprobs"] is None
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert answer.headers["x-request-id"]


def test_a_stream_says_what_the_whole_answer_says() -> None:
    server = client(TEXT)
    answer = ask(server, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert streamed(answer) == whole(ask(server)) == [TEXT]
    chunks = answer.data
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["usage"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    usage = ask(server).json["usage"]
    assert {k: chunks[-1]["usage"][k] for k in ("prompt_tokens", "completion_tokens")} == {
        k: usage[k] for k in ("prompt_tokens", "completion_tokens")
    }
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert len({c["id"] for c in chunks}) == 1
    assert "\ufffd" not in answer.text


@pytest.mark.parametrize("stop", ["fox jumps", ["over", "jumps"], ["lazy dog", "brown"]])
def test_no_part_of_a_stop_string_is_ever_sent(stop: Any) -> None:
    server = client(TEXT)
    strings = [stop] if isinstance(stop, str) else stop
    expected = TEXT[: min(TEXT.find(s) for s in strings)]
    assert whole(ask(server, stop=stop)) == [expected]
    answer = ask(server, stop=stop, stream=True)
    assert streamed(answer) == [expected]
    assert answer.data[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_stop_string_that_never_comes_holds_nothing_back() -> None:
    server = client(TEXT)
    assert streamed(ask(server, stop=["dog!", "dog that"], stream=True)) == [TEXT]


def test_several_choices_with_seeds() -> None:
    server = client()
    body = {"n": 3, "seed": 7, "temperature": 1, "max_tokens": 6}
    texts = whole(ask(server, **body))
    assert len(set(texts)) > 1 and whole(ask(server, **body)) == texts
    assert streamed(ask(server, stream=True, **body), 3) == texts
    assert whole(ask(server, **{**body, "n": 1})) == texts[:1]
    answer = ask(server, **body)
    assert answer.json["usage"]["completion_tokens"] == 18
    assert [c["index"] for c in answer.json["choices"]] == [0, 1, 2]


def test_logprobs() -> None:
    server = client()
    body = {"logprobs": True, "top_logprobs": 3, "max_tokens": 5}
    entries = ask(server, **body).json["choices"][0]["logprobs"]["content"]
    assert len(entries) == 5
    for entry in entries:
        assert entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]  # greedy
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
    chunks = ask(server, stream=True, **body).data
    told = [c["choices"][0]["logprobs"] for c in chunks if c["choices"]]
    assert [e for t in told if t for e in t["content"]] == entries


def test_an_end_token_is_no_part_of_the_logprobs() -> None:
    choice = ask(client("the"), logprobs=True).json["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert "".join(e["token"] for e in choice["logprobs"]["content"]) == "the"


def test_logit_bias_decides() -> None:
    bias = {str(i): -100 for i in range(VOCAB) if i != 5}
    choice = ask(client(), logit_bias=bias, max_tokens=3, logprobs=True).json["choices"][0]
    assert len({e["token"] for e in choice["logprobs"]["content"]}) == 1


def test_max_tokens_is_an_upper_bound_whatever_the_context_is() -> None:
    server = client(engine=make_engine("ab ", then_end=False))
    choice = ask(server, max_completion_tokens=100_000).json["choices"][0]
    assert choice["finish_reason"] == "length"
    assert ask(server, max_tokens=2).json["usage"]["completion_tokens"] == 2


def test_a_prompt_longer_than_the_context_names_both_sizes() -> None:
    messages = [{"role": "user", "content": "fox 12 " * 400}]
    error = client().post(PATH, {"messages": messages})
    assert error.status == 400 and error.error["code"] == "context_length_exceeded"
    assert "400" in error.error["message"] and "1,6" in error.error["message"]


def test_truncation_is_asked_for_and_reported() -> None:
    old = [{"role": r, "content": "fox " * 60} for r in ("user", "assistant")] * 4
    system = {"role": "system", "content": "short"}
    messages = [system, *old, *USER]
    server = client("yes")
    assert server.post(PATH, {"messages": messages}).status == 400
    answer = server.post(PATH, {"messages": messages, "truncation": "auto", "max_tokens": 5})
    assert answer.status == 200 and int(answer.headers["x-pumice-truncated"]) % 2 == 0
    alone = [system, {"role": "user", "content": "fox " * 600}]
    assert server.post(PATH, {"messages": alone, "truncation": "auto"}).status == 400
    assert "x-pumice-truncated" not in ask(server, truncation="auto").headers


def test_an_answer_is_continued() -> None:
    messages = [*USER, {"role": "assistant", "content": "the quick"}]
    tokens = client().post("/tokenize", {"messages": messages[:1]}).json["count"]
    answer = client().post(
        PATH, {"messages": messages, "continue_final_message": True, "max_tokens": 1}
    )
    assert tokens < answer.json["usage"]["prompt_tokens"] <= tokens + 3


def test_roles_and_parts() -> None:
    server = client("ok")
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": parts},
        {"role": "user", "content": "a", "name": "Ann"},
        {"role": "assistant", "content": None, "refusal": "no", "annotations": None, "audio": None},
        {"role": "user", "content": "b"},
    ]
    assert whole(server.post(PATH, {"messages": messages})) == ["ok"]
    asked = server.post("/tokenize", {"messages": messages, "return_token_strs": True}).json
    text = "".join(asked["token_strs"])
    assert text.startswith("<|im_start|>system\na\nb<|im_end|>") and "\nno<|im_end|>" in text


def test_a_user_is_no_id() -> None:
    async def work(http: Any, _: Any) -> list[int]:
        import asyncio

        body = {"messages": USER, "user": "same", "max_tokens": 20}
        answers = await asyncio.gather(*(http.post(PATH, json=body) for _ in range(4)))
        return [answer.status_code for answer in answers]

    assert client().run(work) == [200] * 4


BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"foo": 1}, "foo"),
    ({"messages": [{"role": "user", "content": "a", "fo\"o": 1}]}, 'messages[0].fo"o'),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "wizard", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
    ({"messages": [{"role": "assistant"}]}, "messages[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url":
        {"url": "http://x"}}]}]}, "messages[0].content[0]"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": True}, "n"),
    ({"n": 1000}, "n"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias"),
    ({"logit_bias": {"999999999": 1}}, "logit_bias"),
    ({"stop_token_ids": [-1]}, None),
    ({"temperature": 1e300 * 1e10}, "temperature"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "a" * 257}, "stop"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"functions": []}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"audio": {}}, "audio"),
    ({"modalities": ["audio"]}, "modalities"),
    ({"prediction": {}}, "prediction"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"store": True}, "store"),
    ({"verbosity": "high"}, "verbosity"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"deadline_s": 0}, "deadline_s"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "param"), BAD, ids=lambda v: json.dumps(v)[:40])
def test_a_bad_value_is_named(change: dict[str, Any], param: str | None) -> None:
    body = json.dumps({"messages": USER, **change}).replace("Infinity", "1e999").encode()
    answer = client("ok").post(PATH, body)
    assert answer.status == 400, answer.text
    assert answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error"
    assert answer.error["message"] and "pydantic" not in answer.text


HARMLESS: list[dict[str, Any]] = [
    {"user": "x", "metadata": {"a": "b"}, "safety_identifier": "x", "prompt_cache_key": "k"},
    {"store": False, "service_tier": "auto", "modalities": ["text"], "verbosity": "medium"},
    {"seed": -1, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "priority": -3},
    {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
    {"frequency_penalty": 1, "presence_penalty": -1, "top_p": 0.5, "temperature": 2},
    {"response_format": {"type": "text"}, "reasoning_effort": "none", "stop": None},
    {"stop_token_ids": [7], "ignore_eos": False, "deadline_s": 60, "n": None},
]


@pytest.mark.parametrize("change", HARMLESS, ids=lambda v: next(iter(v)))
def test_what_works(change: dict[str, Any]) -> None:
    assert ask(client(), max_tokens=3, **change).status == 200


def test_a_model_that_is_not_served() -> None:
    answer = ask(client("ok"), model="gpt-9")
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert "toy" in answer.error["message"]


def test_images_have_a_limit() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 200}}
    messages = [{"role": "user", "content": [part]}]
    assert client(max_image_url=100).post(PATH, {"messages": messages}).status == 413


def test_a_full_queue_tells_when_to_come_again() -> None:
    import engine_toy

    limits = engine_toy.limits(context_length=400, num_blocks=200)
    engine, _ = engine_toy.make(limits, max_waiting=1, max_running=1)
    server = client(engine=engine)

    async def work(http: Any, _: Any) -> list[Any]:
        import asyncio

        body = {"messages": USER, "max_tokens": 40, "ignore_eos": True}
        return await asyncio.gather(*(http.post(PATH, json=body) for _ in range(8)))

    answers = server.run(work)
    refused = [a for a in answers if a.status_code == 429]
    assert refused and len(refused) < 8 and {a.status_code for a in answers} == {200, 429}
    assert all(int(a.headers["retry-after"]) >= 1 for a in refused)
    assert refused[0].json()["error"]["code"] == "queue_full"


def test_a_step_that_fails_is_an_error_without_details() -> None:
    engine = make_engine("ok")

    def fail(_: int) -> None:
        raise RuntimeError("/secret/path of the device")

    engine.executable.before = fail  # type: ignore[attr-defined]
    server = client(engine=engine)
    answer = ask(server)
    assert answer.status == 500 and "secret" not in answer.text and "Trace" not in answer.text
    engine.executable.before = lambda _: None  # type: ignore[attr-defined]
    assert whole(ask(server)) == ["ok"]


def test_a_step_that_fails_in_a_stream_is_an_event() -> None:
    engine = make_engine(TEXT)

    def fail(step: int) -> None:
        if step == 4:
            raise RuntimeError("/secret/path of the device")

    engine.executable.before = fail  # type: ignore[attr-defined]
    answer = ask(client(engine=engine), stream=True)
    assert answer.status == 200 and answer.text.endswith("data: [DONE]\n\n")
    assert answer.data[-1]["error"]["type"] == "server_error" and "secret" not in answer.text


def test_a_deadline_ends_an_answer_as_it_is() -> None:
    import time

    engine = make_engine(TEXT)
    engine.executable.before = lambda _: time.sleep(0.02)  # type: ignore[attr-defined]
    answer = ask(client(engine=engine), deadline_s=0.15)
    choice = answer.json["choices"][0]
    assert choice["finish_reason"] == "deadline"
    assert TEXT.startswith(choice["message"]["content"])
