"""From an output to events: stop strings, reasoning, calls; the same in any pieces."""

from __future__ import annotations

import itertools
import json
from typing import Any

import engine_toy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from server_app import USER, Client, client, make_engine

from pumice.engine.engine import LLMEngine
from pumice.server.core.choice import Choice, PlainParser
from pumice.server.core.emoji import WholeEmoji
from pumice.server.core.enforced import calls_schema
from pumice.server.core.job import Tools
from pumice.server.core.result import Result
from pumice.server.core.tool_prompt import describe, spell_out
from pumice.server.parsers import make_parser
from pumice.server.settings import ServerSettings
from pumice.text.tokenizer import Tokenizer

CHAT = "/v1/chat/completions"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": CITY}},
         {"type": "function", "function": {"name": "time", "parameters": CITY}}]  # fmt: skip
HERMES = engine_toy.CHATML + "{# tools tool_calls <tool_call> #}"
THINKING = engine_toy.CHATML + "{# <think> </think> #}"
CALLS = (
    'I look. <tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "the fox"}}\n</tool_call>'
)


def server(answer: str, template: str) -> Client:
    tokenizer = engine_toy.tokenizer(template)
    engine = make_engine(answer, context_length=600, num_blocks=1200)
    return Client(
        LLMEngine(engine.executable, tokenizer), ServerSettings(names=("toy",), access_log=False)
    )


def streamed(answer: Any) -> dict[str, Any]:
    """A stream's message, added up as a client does."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in answer.data:
        delta = chunk["choices"][0]["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({**call, "function": dict(call["function"])})
            else:
                function = message["tool_calls"][call["index"]]["function"]
                function["arguments"] += call["function"]["arguments"]
    return message


def test_calls_are_the_same_streamed_or_not() -> None:
    toy = server(CALLS, HERMES)
    body = {"messages": USER, "tools": TOOLS}
    choice = toy.post(CHAT, body).json["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "I look."
    cities = [json.loads(c["function"]["arguments"])["city"] for c in message["tool_calls"]]
    assert cities == ["Paris", "the fox"]
    assert all(c["type"] == "function" and c["id"] for c in message["tool_calls"])
    assert len({c["id"] for c in message["tool_calls"]}) == 2
    told = streamed(toy.post(CHAT, {**body, "stream": True}))
    assert told["content"] == message["content"]
    assert [c["function"] for c in told["tool_calls"]] == [
        c["function"] for c in message["tool_calls"]
    ]


def test_one_call_when_calls_may_not_be_parallel() -> None:
    body = {"messages": USER, "tools": TOOLS, "parallel_tool_calls": False}
    choice = server(CALLS, HERMES).post(CHAT, body).json["choices"][0]
    assert len(choice["message"]["tool_calls"]) == 1 and choice["finish_reason"] == "tool_calls"


def test_without_tools_calls_are_text() -> None:
    for body in ({"messages": USER}, {"messages": USER, "tools": TOOLS, "tool_choice": "none"}):
        choice = server(CALLS, HERMES).post(CHAT, body).json["choices"][0]
        assert choice["message"]["content"] == CALLS and choice["finish_reason"] == "stop"


def test_an_unknown_tool_spoils_its_own_call_only() -> None:
    answer = CALLS.replace('"name": "weather"', '"name": "nothing"', 1)
    choice = (
        server(answer, HERMES).post(CHAT, {"messages": USER, "tools": TOOLS}).json["choices"][0]
    )
    assert [c["function"]["name"] for c in choice["message"]["tool_calls"]] == ["weather"]
    assert "nothing" in choice["message"]["content"]


def test_calls_in_every_protocol() -> None:
    toy = server(CALLS, HERMES)
    functions = [{"type": "function", **t["function"]} for t in TOOLS]
    items = toy.post("/v1/responses", {"input": "the", "tools": functions}).json["output"]
    assert [i["type"] for i in items] == ["message", "function_call", "function_call"]
    assert json.loads(items[2]["arguments"]) == {"city": "the fox"}
    tools = [{"name": t["function"]["name"], "input_schema": CITY} for t in TOOLS]
    body = {"model": "toy", "max_tokens": 200, "messages": USER, "tools": tools}
    message = toy.post("/v1/messages", body).json
    assert [b["type"] for b in message["content"]] == ["text", "tool_use", "tool_use"]
    assert message["content"][1]["input"] == {"city": "Paris"}
    assert message["stop_reason"] == "tool_use"
    kinds = [e["type"] for e in toy.post("/v1/messages", {**body, "stream": True}).data]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3
    for stream in (True, False):
        answer = toy.post("/api/chat", {"model": "toy", "messages": USER, "tools": TOOLS,
                                        "stream": stream})  # fmt: skip
        lines = answer.data if stream else [answer.json]
        calls = [c for line in lines for c in line["message"].get("tool_calls", ())]
        assert [c["function"]["arguments"]["city"] for c in calls] == ["Paris", "the fox"]


def test_reasoning_is_read_before_stop_strings() -> None:
    toy = server("<think>\nthe fox jumps\n</think>\n\nthe dog and the fox", THINKING)
    message = toy.post(CHAT, {"messages": USER, "stop": ["fox"]}).json["choices"][0]["message"]
    assert message["reasoning_content"] == "the fox jumps"
    assert message["content"] == "the dog and the "
    told = streamed(toy.post(CHAT, {"messages": USER, "stop": ["fox"], "stream": True}))
    assert (told["reasoning_content"], told["content"]) == ("the fox jumps", "the dog and the ")
    usage = toy.post(CHAT, {"messages": USER}).json["usage"]
    details = usage["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < usage["completion_tokens"]
    body = {"model": "toy", "max_tokens": 100, "messages": USER}
    assert [b["type"] for b in toy.post("/v1/messages", body).json["content"]] == ["text"]
    body["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    assert [b["type"] for b in toy.post("/v1/messages", body).json["content"]] == [
        "thinking", "text"
    ]  # fmt: skip
    items = toy.post("/v1/responses", {"input": "the"}).json["output"]
    assert [i["type"] for i in items] == ["reasoning", "message"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}])
@pytest.mark.parametrize("parallel", [True, False])
def test_calls_that_must_come(choice: Any, parallel: bool) -> None:
    """A model of random logits has to call."""
    body = {"messages": USER, "tools": TOOLS, "tool_choice": choice, "max_tokens": 250,
            "parallel_tool_calls": parallel, "temperature": 1, "seed": 3}  # fmt: skip
    toy = client(engine=make_engine(context_length=600, num_blocks=600))
    answer = toy.post(CHAT, body)
    assert answer.status == 200, answer.text
    told = answer.json["choices"][0]
    calls = told["message"]["tool_calls"]
    assert calls and told["message"]["content"] is None
    names = {c["function"]["name"] for c in calls}
    assert names <= ({"weather", "time"} if choice == "required" else {"time"})
    if told["finish_reason"] == "tool_calls":
        for call in calls:
            assert set(json.loads(call["function"]["arguments"])) >= {"city"}
    again = streamed(toy.post(CHAT, {**body, "stream": True}))
    assert [c["function"] for c in again["tool_calls"]] == [c["function"] for c in calls]


STRICT = [{"type": "function", "function": {"name": "weather", "strict": True, "parameters":
           {**CITY, "additionalProperties": False}}}]  # fmt: skip


@pytest.mark.parametrize("template", [HERMES, engine_toy.CHATML])
def test_a_strict_function_that_may_be_called_is_called_rightly(template: str) -> None:
    wrong = 'I look. <tool_call>\n{"name": "weather", "arguments": {"town": 3, "x": [1]}}'
    toy = server(wrong, template)
    body = {"messages": USER, "tools": STRICT, "max_tokens": 120}
    message = toy.post(CHAT, body).json["choices"][0]["message"]
    assert message["content"] == "I look."
    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert set(arguments) == {"city"} and isinstance(arguments["city"], str)
    free = server("the quick fox", template).post(CHAT, body).json["choices"][0]
    assert free["message"]["content"] == "the quick fox" and free["finish_reason"] == "stop"


def test_strict_is_refused_where_it_cannot_be_enforced() -> None:
    llama = engine_toy.CHATML + "{# tools tool_calls Environment: ipython #}"
    answer = server("the", llama).post(CHAT, {"messages": USER, "tools": STRICT})
    assert answer.status == 400 and answer.error["param"] == "tools"
    bad = [{"type": "function", "function": {"name": "f", "strict": True, "parameters":
            {"type": "object", "properties": {"a": {"not": {}}}}}}]  # fmt: skip
    for choice in ("auto", "required"):
        body = {"messages": USER, "tools": bad, "tool_choice": choice}
        answer = server("the", HERMES).post(CHAT, body)
        assert answer.status == 400 and answer.error["code"] == "unsupported_schema"


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        (TOOLS, {"type": "function", "function": {"name": "x"}}, "tool_choice"),
        ([TOOLS[0], TOOLS[0]], "auto", "tools"),
        ([{"type": "function", "function": {"name": "a b"}}], "auto", "tools[0].function.name"),
        ([{"type": "function", "function": {}}], "auto", "tools[0].function.name"),
        ([{"type": "custom"}], "auto", "tools[0].type"),
        (TOOLS * 65, "auto", "tools"),
    ],
)
def test_bad_tools(tools: Any, choice: Any, param: str) -> None:
    body = {"messages": USER, "tools": tools, "tool_choice": choice}
    answer = server("the", HERMES).post(CHAT, body)
    assert answer.status == 400 and answer.error["param"] == param, answer.text


def test_a_schema_that_cannot_be_enforced_is_refused_with_its_place() -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    for bad in (schema, {"type": "strin"}, {"$ref": "#/nowhere"}):
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": bad}}
        answer = client().post(CHAT, {"messages": USER, "response_format": form})
        assert answer.status == 400 and answer.error["code"] == "unsupported_schema", answer.text
    answer = client(max_schema_bytes=20).post(CHAT, {"messages": USER, "response_format": form})
    assert answer.status == 400 and "bytes" in answer.error["message"]


SCHEMAS: list[Any] = [
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "string", "maxLength": 5},
    {"type": "array", "items": {"$ref": "#/$defs/e"}, "$defs": {"e": {"enum": ["a", 1, None]}},
     "maxItems": 3},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
     "additionalProperties": False},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
def test_a_schema_is_kept_to(schema: Any) -> None:
    import jsonschema_rs

    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    body = {"messages": USER, "response_format": form, "temperature": 1, "seed": 1,
            "max_tokens": 120}  # fmt: skip
    choice = client().post(CHAT, body).json["choices"][0]
    if choice["finish_reason"] == "stop":
        jsonschema_rs.validate(schema, json.loads(choice["message"]["content"]))
    else:
        assert choice["finish_reason"] == "length"


def test_references_follow_a_schema_that_moves() -> None:
    properties = {"c": {"$ref": "#/$defs/c"}, "self": {"$ref": "#"}}
    parameters = {"type": "object", "properties": properties, "$defs": {"c": {"type": "string"}}}
    tools = Tools(({"type": "function", "function": {"name": "f", "parameters": parameters}},),
                  "required")  # fmt: skip
    schema = calls_schema(tools)
    moved = schema["$defs"]["parameters0"]
    assert moved["properties"]["c"]["$ref"] == "#/$defs/parameters0/$defs/c"
    assert moved["properties"]["self"]["$ref"] == "#/$defs/parameters0"
    assert schema["type"] == "array" and schema["minItems"] == 1


def test_tools_for_a_template_that_knows_none() -> None:
    told = describe([{"role": "system", "content": "short"}, *USER], TOOLS, tagged=False)
    assert told[0]["content"].startswith("short\n\n") and '"weather"' in told[0]["content"]
    tagged = describe(USER, TOOLS, tagged=True)
    assert tagged[0]["role"] == "system" and "<tool_call>" in tagged[0]["content"]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    history = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sun", "tool_call_id": "c", "name": "f"},
    ]
    assert spell_out(history) == [
        {"role": "assistant", "content": '{"name": "f", "arguments": {"a": 1}}'},
        {"role": "user", "content": "Result of f: sun"},
    ]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_pieces_any_stops(data: st.DataObject) -> None:
    """Whatever the pieces, the events add up to the same, and hold no stop string."""
    text = data.draw(st.text(alphabet='ab<>{}\n"😀\u200d🇫', max_size=40)) + data.draw(
        st.sampled_from(["", CALLS, "<think>ab</think>ba", "<think>a"])
    )
    stop = data.draw(st.lists(st.sampled_from(["ab", "b", "look", "a<", "Paris"]), max_size=2))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))

    def read(pieces: list[str]) -> tuple[Any, ...]:
        parser = make_parser("hermes", TOOLS, reasoning="tagged", new_id=lambda: "id")
        choice = Choice(parser, stop, one_call=False)
        result = Result()
        for piece in pieces:
            result.add_events(choice.push(piece, 1))
        result.add_events(choice.finish())
        calls = [(c.name, c.arguments) for c in result.calls]
        return result.content, result.reasoning, calls, choice.stopped_by

    whole = read([text])
    bounds = [0, *cuts, len(text)]
    assert read([text[a:b] for a, b in itertools.pairwise(bounds)]) == whole
    assert read(list(text)) == whole
    assert not any(s in whole[0] for s in stop)


EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "🇫🇷", "👍🏽", "❤️", "1️⃣", "🏴󠁧󠁢󠁳󠁣󠁴󠁿", "😀", "☀"]


@pytest.mark.parametrize("emoji", EMOJI)
def test_emoji_stream_whole(emoji: str) -> None:
    for text in (emoji, emoji * 2, f"a{emoji}b", f"{emoji} {emoji}"):
        stream = WholeEmoji()
        pieces = [stream.push(character) for character in text] + [stream.finish()]
        assert "".join(pieces) == text
        if not emoji.startswith("1"):  # a digit is not held for the keycap that may follow
            assert all(emoji in piece or not set(piece) & set(emoji) for piece in pieces)


def test_what_is_held_for_emoji_has_a_bound() -> None:
    stream = WholeEmoji()
    text = "😀\u200d" * 200
    shown = [stream.push(character) for character in text]
    assert sum(map(len, shown)) > 300 and "".join(shown) + stream.finish() == text
    assert stream.push("plain ") == "plain " and stream.push("日本語") == "日本語"


def test_control_tokens_are_not_shown() -> None:
    choice = Choice(PlainParser(), [], one_call=False, hidden=frozenset({"<|x|>"}))
    result = Result()
    for piece in ("a<|x|>b", "<|x|>", "c"):
        result.add_events(choice.push(piece, 1))
    assert result.content == "abc"


def test_a_model_without_a_template_only_completes() -> None:
    engine = make_engine("the")
    plain: Tokenizer = engine_toy.plain_tokenizer()
    toy = Client(LLMEngine(engine.executable, plain), ServerSettings(names=("toy",)))
    answer = toy.post(CHAT, {"messages": USER})
    assert answer.status == 400 and "/v1/completions" in answer.error["message"]
    assert toy.post("/v1/completions", {"prompt": "the", "max_tokens": 2}).status == 200
    assert toy.post("/api/generate", {"model": "toy", "prompt": "the", "stream": False,
                                      "options": {"num_predict": 2}}).status == 200  # fmt: skip
