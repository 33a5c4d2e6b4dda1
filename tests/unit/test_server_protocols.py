"""OpenAI's completions, responses and embeddings; tokens and figures."""

from __future__ import annotations

from typing import Any

import engine_toy
import pytest
from server_app import USER, client

from pumice.server.core.job import Message
from pumice.server.store import ResponseStore, Stored

TEXT = "the quick brown fox jumps"
COMPLETIONS, RESPONSES = "/v1/completions", "/v1/responses"


# Completions


def test_prompts_of_every_form() -> None:
    server = client()
    ids = engine_toy.tokenizer().encode("the fox", add_special=False, parse_special=False)
    forms: list[Any] = ["the fox", ["the fox", "a dog"], ids, [ids, ids]]
    texts = []
    for form in forms:
        answer = server.post(COMPLETIONS, {"prompt": form, "max_tokens": 5})
        assert answer.status == 200, answer.text
        texts.append([c["text"] for c in answer.json["choices"]])
        streamed = [""] * len(texts[-1])
        for chunk in server.post(
            COMPLETIONS, {"prompt": form, "max_tokens": 5, "stream": True}
        ).data:
            for choice in chunk["choices"]:
                streamed[choice["index"]] += choice["text"]
        assert streamed == texts[-1]
    assert texts[0] == texts[2] == texts[1][:1] and texts[3] == texts[0] * 2


def test_completions_by_index_with_echo_and_usage() -> None:
    body = {"prompt": ["the", "fox"], "n": 2, "echo": True, "max_tokens": 2, "seed": 1,
            "temperature": 1}  # fmt: skip
    answer = client().post(COMPLETIONS, body).json
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    starts = [c["text"][:3] for c in answer["choices"]]
    assert starts == ["the", "the", "fox", "fox"]
    assert answer["usage"]["completion_tokens"] == 8
    chunks = client().post(COMPLETIONS, {**body, "stream": True}).data
    texts = [""] * 4
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [c["text"] for c in answer["choices"]]


def test_older_logprobs() -> None:
    choice = client().post(
        COMPLETIONS, {"prompt": "the fox", "logprobs": 2, "max_tokens": 4}
    ).json["choices"][0]  # fmt: skip
    told = choice["logprobs"]
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["text_offset"]) == 4
    assert all(len(top) >= 1 for top in told["top_logprobs"])
    assert told["text_offset"][0] == 0 and told["text_offset"] == sorted(told["text_offset"])


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"best_of": 3}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [["a"]]}, "prompt[0][0]"),
        ({"prompt": ["a"] * 65}, "prompt, with n for each,"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"logprobs": 21}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_bad_completions(change: dict[str, Any], param: str) -> None:
    answer = client().post(COMPLETIONS, {"prompt": "the", **change})
    assert answer.status == 400 and answer.error["param"] == param, answer.text


def test_one_prompt_that_does_not_fit_refuses_all() -> None:
    server = client()
    for stream in (True, False):
        body = {"prompt": ["the", "the fox " * 300, "a"], "max_tokens": 300, "stream": stream}
        assert server.post(COMPLETIONS, body).status == 400
        engine_toy.assert_idle(server.engine)


def test_a_prompt_of_tokens_is_shortened_when_that_is_asked_for() -> None:
    body = {"prompt": "the fox " * 300, "max_tokens": 2}
    assert client().post(COMPLETIONS, body).status == 400
    answer = client().post(COMPLETIONS, {**body, "truncate_prompt_tokens": 50})
    assert answer.json["usage"]["prompt_tokens"] == 50
    assert int(answer.headers["x-pumice-truncated"]) > 100


# Responses


def output(answer: Any) -> Any:
    assert answer.status == 200, answer.text
    return answer.json["output"]


def test_a_response_is_stored_and_gone_on_from() -> None:
    server = client(TEXT)

    async def work(http: Any, context: Any) -> None:
        first = (await http.post(RESPONSES, json={"input": "the dog", "instructions": "x"})).json()
        assert first["status"] == "completed" and first["output"][0]["content"][0]["text"] == TEXT
        assert (await http.get(f"{RESPONSES}/{first['id']}")).json() == first
        items = (await http.get(f"{RESPONSES}/{first['id']}/input_items")).json()
        assert items["data"][0]["content"] == [{"type": "input_text", "text": "the dog"}]
        body = {"input": "again", "previous_response_id": first["id"]}
        second = (await http.post(RESPONSES, json=body)).json()
        flat = {"input": [{"role": "user", "content": "the dog"},
                          {"role": "assistant", "content": TEXT},
                          {"role": "user", "content": "again"}], "store": False}  # fmt: skip
        third = (await http.post(RESPONSES, json=flat)).json()
        assert second["usage"]["input_tokens"] == third["usage"]["input_tokens"]
        assert len(context.store) == 2
        assert (await http.get(f"{RESPONSES}/{third['id']}")).status_code == 404
        assert (await http.delete(f"{RESPONSES}/{first['id']}")).json()["deleted"] is True
        gone = await http.post(RESPONSES, json=body)
        assert gone.status_code == 404
        assert gone.json()["error"]["param"] == "previous_response_id"

    server.run(work)


def test_a_stream_of_events_adds_up_to_the_response() -> None:
    answer = client(TEXT).post(RESPONSES, {"input": "the dog", "stream": True})
    events = answer.data
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    kinds = [e["type"] for e in events]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added",
                         "response.content_part.added"]  # fmt: skip
    assert kinds[-4:] == ["response.output_text.done", "response.content_part.done",
                          "response.output_item.done", "response.completed"]  # fmt: skip
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    done = events[-1]["response"]
    assert "".join(deltas) == done["output"][0]["content"][0]["text"] == TEXT
    assert len({e["item_id"] for e in events if "item_id" in e}) == 1
    assert events[2]["item"]["content"] == []  # as it was then
    assert events[0]["response"]["usage"] is None and done["usage"]["output_tokens"] > 0


def test_every_token_of_a_response_has_its_logprob() -> None:
    """Also those whose bytes are no whole character yet."""
    body = {"input": "the", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    server = client("the 😀 fox 👩‍👩‍👧")
    answer = server.post(RESPONSES, body).json
    told = output_logprobs(answer)
    assert len(told) == answer["usage"]["output_tokens"] - 1  # the end token
    assert b"".join(bytes(e["bytes"]) for e in told).decode() == "the 😀 fox 👩‍👩‍👧"
    events = server.post(RESPONSES, {**body, "stream": True}).data
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert [e for delta in deltas for e in delta["logprobs"]] == told
    assert output_logprobs(events[-1]["response"]) == told


def output_logprobs(response: Any) -> Any:
    return response["output"][0]["content"][0]["logprobs"]


def test_a_response_that_is_cut_off_says_so() -> None:
    answer = client(TEXT).post(RESPONSES, {"input": "the dog", "max_output_tokens": 1})
    assert answer.json["status"] == "incomplete"
    assert answer.json["incomplete_details"] == {"reason": "max_output_tokens"}
    assert output(answer)[0]["status"] == "incomplete"


def test_calls_and_reasoning_come_back_as_messages() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_1",
            "async_": None, "caller": None, "namespace": None, "status": "completed"}  # fmt: skip
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "the"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text",
         "text": "hm"}], "encrypted_content": None, "status": None},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "fox"},
    ]  # fmt: skip
    assert output(client(TEXT).post(RESPONSES, {"input": items}))


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"include": ["web_search_call.results"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": []}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_bad_responses(change: dict[str, Any], param: str) -> None:
    answer = client(TEXT).post(RESPONSES, {"input": "the", **change})
    assert answer.status == 400 and answer.error["param"] == param, answer.text


def stored(salt: bytes = b"", size: int = 1) -> Stored:
    message: Message = {"role": "user", "content": "x" * size}
    return Stored({}, [], (message,), salt)


def test_the_store_is_bounded_and_private() -> None:
    store = ResponseStore(3, 10_000)
    for i in range(5):
        store.put(f"r{i}", stored())
    assert len(store) == 3 and store.get("r1", b"") is None and store.get("r2", b"") is not None
    store.put("other", stored(b"salt"))
    assert store.get("other", b"") is None and not store.remove("other", b"")
    assert store.get("other", b"salt") is not None
    store.put("large", stored(size=9_940))
    assert len(store) == 1
    store.put("too large", stored(size=20_000))
    assert store.get("too large", b"") is None and len(store) == 1
    assert store.remove("large", b"") and len(store) == 0


# Embeddings, tokens, figures


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "the"}),
        ("/api/embed", {"model": "toy", "input": ["the"]}),
        ("/api/embeddings", {"model": "toy", "prompt": "the"}),
    ],
)
def test_embeddings_are_refused_while_there_are_no_hidden_states(path: str, body: Any) -> None:
    answer = client().post(path, body)
    assert answer.status == 501 and "hidden states" in answer.text


def test_embeddings_of_an_engine_that_makes_them() -> None:
    import base64

    import numpy as np

    class Fake:
        async def embed(self, ids: list[list[int]], pooling: str) -> np.ndarray:
            assert pooling == "mean"
            return np.array([[len(i), 0.5] for i in ids], np.float32)

    server = client()
    server._options = {"embedder": Fake()}
    body = {"input": ["the", "the quick brown fox"], "pooling": "mean"}
    answer = server.post("/v1/embeddings", body).json
    first, second = (entry["embedding"] for entry in answer["data"])
    assert first[0] < second[0] and answer["usage"]["prompt_tokens"] == first[0] + second[0]
    coded = server.post("/v1/embeddings", {**body, "encoding_format": "base64"}).json["data"]
    assert np.frombuffer(base64.b64decode(coded[1]["embedding"]), "<f4").tolist() == second


def test_tokens_there_and_back() -> None:
    server = client()
    text = "the 😀 fox <|im_end|>"
    told = server.post("/tokenize", {"prompt": text}).json
    assert told["count"] == len(told["tokens"]) and told["max_model_len"] == 400
    assert server.post("/detokenize", {"tokens": told["tokens"]}).json["prompt"] == text
    assert server.post("/detokenize", {"tokens": [10**9]}).status == 400
    assert server.post("/tokenize", {"prompt": "a", "messages": USER}).status == 400


def test_every_field_is_described() -> None:
    described = client().get("/openapi.json").json
    fields = described["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"messages", "temperature", "top_k", "response_format", "priority"} <= set(fields)
    assert "/v1/messages" in described["paths"]
    assert not any("__" in name for name in described["components"]["schemas"])


def test_figures() -> None:
    server = client(TEXT)

    async def work(http: Any, _: Any) -> str:
        await http.post("/v1/chat/completions", json={"messages": USER})
        await http.post("/v1/chat/completions", json={"messages": 3})
        text: str = (await http.get("/metrics")).text
        return text

    text = server.run(work)
    for line in (
        'pumice_engine_running{model_name="toy"} 0.0',
        'pumice_engine_finished_total{model_name="toy"} 1.0',
        'pumice_time_to_first_token_seconds_count{model_name="toy"} 1.0',
        'pumice_request_finished_total{model_name="toy",reason="stop"} 1.0',
        'pumice_http_requests_total{method="POST",route="/v1/chat/completions",status="400"} 1.0',
    ):
        assert line in text, line
    assert "pumice_engine_batch_size_histogram_bucket" in text
    latency = 'pumice_inter_token_latency_seconds_{}{{{}model_name="toy"}} '
    counts = [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith("pumice_inter_token_latency_seconds_bucket")
    ]
    assert counts == sorted(counts) and counts[-1] > 0
    assert latency.format("count", "") + str(counts[-1]) in text
    assert latency.format("bucket", 'le="1.0",') in text
