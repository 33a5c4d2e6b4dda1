"""The official clients of OpenAI, Anthropic and Ollama against a live server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import numpy as np
import ollama
import openai
import pytest
from pydantic import BaseModel
from tests.e2e.serving import MODEL, STREAMS, artifact, served

FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
ASK: Any = [{"role": "user", "content": FRANCE}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function",
     "function": {"name": "weather", "description": "The weather in a city", "parameters": CITY}}
]  # fmt: skip
WEATHER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


@pytest.fixture(scope="module")
def live(smollm2_gguf: Path, cache_dir: Path) -> Iterator[tuple[str, Any]]:
    with served(artifact(smollm2_gguf, cache_dir)) as server:
        yield server


@pytest.fixture(scope="module")
def gpt(live: tuple[str, Any]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live[0]}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(live: tuple[str, Any]) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=live[0], api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def llama(live: tuple[str, Any]) -> Iterator[ollama.Client]:
    client = ollama.Client(live[0])
    yield client
    client._client.close()


# OpenAI


def test_chat(gpt: openai.OpenAI) -> None:
    assert [model.id for model in gpt.models.list()] == [MODEL]
    answer = gpt.chat.completions.create(model=MODEL, messages=ASK, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == (PARIS, "stop")
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert "".join(entry.token for entry in choice.logprobs.content) == PARIS
    assert answer.usage is not None and answer.usage.completion_tokens == 8


def test_chat_stream(gpt: openai.OpenAI) -> None:
    stream = gpt.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == PARIS
    assert chunks[-1].usage is not None and chunks[-1].usage.total_tokens > 8


def test_stop_strings_never_show(gpt: openai.OpenAI) -> None:
    prompt = "Here is the English alphabet: ABC"
    free = gpt.completions.create(model=MODEL, prompt=prompt, max_tokens=30, temperature=0)
    for stop in ("DEFGHIJ", "KLM", "JKLMNOP", ["never", "XYZ"]):
        strings = [stop] if isinstance(stop, str) else stop
        ends = [i for i in map(free.choices[0].text.find, strings) if i >= 0]
        stream = gpt.completions.create(
            model=MODEL, prompt=prompt, max_tokens=30, temperature=0, stop=stop, stream=True
        )
        text = "".join(chunk.choices[0].text for chunk in stream)
        assert text == free.choices[0].text[: min(ends, default=None)]


def test_a_conversation_remembers(gpt: openai.OpenAI) -> None:
    messages = [*ASK, {"role": "assistant", "content": PARIS},
                {"role": "user", "content": "And of Italy?"}]  # fmt: skip
    answer = gpt.chat.completions.create(model=MODEL, messages=messages, max_tokens=20)
    assert "Rome" in (answer.choices[0].message.content or "")
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert (answer.usage.prompt_tokens_details.cached_tokens or 0) > 0


def test_seeds_and_choices(gpt: openai.OpenAI) -> None:
    def texts(n: int) -> list[str | None]:
        answer = gpt.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Name a colour."}], n=n, seed=5,
            temperature=1.5, max_tokens=8,
        )  # fmt: skip
        return [choice.message.content for choice in answer.choices]

    three = texts(3)
    assert texts(3) == three and texts(1) == three[:1] and len(set(three)) > 1


class Person(BaseModel):
    name: str
    age: int


def test_structured_output(gpt: openai.OpenAI) -> None:
    answer = gpt.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Describe a person called Ava, 25."}],
        response_format=Person, max_tokens=60,
    )  # fmt: skip
    person = answer.choices[0].message.parsed
    assert person is not None and person.name
    answer2 = gpt.chat.completions.create(
        model=MODEL, messages=ASK, response_format={"type": "json_object"}, max_tokens=60
    )
    if answer2.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer2.choices[0].message.content or ""), dict)
    with pytest.raises(openai.BadRequestError) as caught:
        gpt.chat.completions.create(
            model=MODEL, messages=ASK, response_format={"type": "json_schema", "json_schema":
                {"name": "x", "schema": {"not": {"type": "string"}}}},
        )  # fmt: skip
    assert "not" in str(caught.value)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_tools_and_back(gpt: openai.OpenAI, choice: Any) -> None:
    body: Any = {"model": MODEL, "messages": WEATHER, "tools": TOOLS, "tool_choice": choice,
                 "max_tokens": 80, "parallel_tool_calls": False}  # fmt: skip
    message = gpt.chat.completions.create(**body).choices[0].message
    assert message.tool_calls is not None
    call: Any = message.tool_calls[0]
    assert call.function.name == "weather" and "city" in json.loads(call.function.arguments)
    chunks = list(gpt.chat.completions.create(**body, stream=True))
    told = [c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or ()]
    arguments = "".join(c.function.arguments or "" for c in told if c.function)
    assert arguments == call.function.arguments and len(told) > 2
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "sunny, 20 °C"}
    messages = [*WEATHER, message.model_dump(), result]
    answer = gpt.chat.completions.create(model=MODEL, messages=messages, max_tokens=30)
    assert answer.choices[0].message.content


def test_the_clients_own_helpers(live: tuple[str, Any], gpt: openai.OpenAI) -> None:
    with gpt.chat.completions.stream(model=MODEL, messages=ASK) as stream:
        assert sum(event.type == "content.delta" for event in stream) > 3
        assert stream.get_final_completion().choices[0].message.content == PARIS
    person: Any = [{"role": "user", "content": "Describe Ava, 25 years."}]
    told = gpt.responses.parse(model=MODEL, input=person, text_format=Person, max_output_tokens=60)
    assert told.output_parsed is not None and told.output_parsed.name
    strict: Any = [openai.pydantic_function_tool(Person, name="person")]
    may = gpt.chat.completions.create(model=MODEL, messages=person, tools=strict, max_tokens=20)
    assert may.choices[0].finish_reason in ("stop", "length", "tool_calls")

    async def together() -> set[str | None]:
        url = live[0]
        async with (
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as one,
            anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as other,
        ):
            first, second = await asyncio.gather(
                one.chat.completions.create(model=MODEL, messages=ASK),
                other.messages.create(model=MODEL, max_tokens=20, messages=ASK),
            )
        block: Any = second.content[0]
        return {first.choices[0].message.content, block.text}

    assert asyncio.run(together()) == {PARIS}


def test_completions(gpt: openai.OpenAI) -> None:
    answer = gpt.completions.create(
        model=MODEL, prompt=["The capital of France is", "1, 2, 3,"], max_tokens=3, echo=True,
        temperature=0,
    )  # fmt: skip
    texts = [choice.text for choice in answer.choices]
    assert texts[0].startswith("The capital of France is Paris")
    assert texts[1].startswith("1, 2, 3, 4")


def test_responses(gpt: openai.OpenAI) -> None:
    first = gpt.responses.create(model=MODEL, input=FRANCE)
    assert first.output_text == PARIS
    second = gpt.responses.create(
        model=MODEL, input="And of Italy?", previous_response_id=first.id, max_output_tokens=20
    )
    assert "Rome" in second.output_text
    assert gpt.responses.retrieve(first.id).output_text == PARIS
    with gpt.responses.stream(model=MODEL, input=FRANCE) as stream:
        deltas = [e.delta for e in stream if e.type == "response.output_text.delta"]
        assert "".join(deltas) == stream.get_final_response().output_text == PARIS
    gpt.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        gpt.responses.retrieve(first.id)
    tools: Any = [{"type": "function", "name": "weather", "parameters": CITY, "strict": True}]
    called: Any = gpt.responses.create(
        model=MODEL, input=WEATHER, tools=tools, tool_choice="required", max_output_tokens=150,
        parallel_tool_calls=False,
    )  # fmt: skip
    output = {"type": "function_call_output", "call_id": called.output[0].call_id, "output": "sun"}
    items: Any = [*WEATHER, *called.output, output]
    assert gpt.responses.create(model=MODEL, input=items, max_output_tokens=20).output_text


def test_errors(gpt: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="smollm2"):
        gpt.chat.completions.create(model="gpt-4o", messages=ASK)
    with pytest.raises(openai.BadRequestError) as caught:
        gpt.chat.completions.create(model=MODEL, messages=ASK, extra_body={"unknown": 1})
    assert caught.value.param == "unknown"
    with pytest.raises(openai.BadRequestError, match=r"2,048"):
        gpt.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "a " * 3000}]
        )
    with pytest.raises(openai.BadRequestError, match=r"holds 2,048"):
        gpt.embeddings.create(model=MODEL, input=["a", "a " * 3000])


def test_embeddings(gpt: openai.OpenAI, llama: ollama.Client) -> None:
    texts = [
        "The cat sleeps on the sofa.",
        "A kitten is napping on the couch.",
        "The central bank raised interest rates.",
        "Monetary policy was tightened by the bank.",
    ]
    answer = gpt.embeddings.create(model=MODEL, input=texts)
    vectors = np.array([entry.embedding for entry in answer.data])
    assert vectors.shape == (4, 576) and answer.usage.prompt_tokens > 20
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    # Vectors of a causal model lie in a narrow cone: what differs is what is left of their mean.
    centred = vectors - vectors.mean(axis=0)
    near = centred @ centred.T
    assert near[0, 1] > max(near[0, 2], near[0, 3]) and near[2, 3] > max(near[1, 2], near[1, 3])
    last = gpt.embeddings.create(model=MODEL, input=texts[0], extra_body={"pooling": "last"})
    assert np.dot(last.data[0].embedding, vectors[0]) < 0.999
    ids = httpx.post(f"{str(gpt.base_url)[:-4]}/tokenize", json={"prompt": texts[1]}).json()
    again = gpt.embeddings.create(model=MODEL, input=[ids["tokens"]], encoding_format="float")
    np.testing.assert_allclose(again.data[0].embedding, vectors[1], atol=1e-4)
    theirs = llama.embed(MODEL, texts)
    np.testing.assert_allclose(theirs["embeddings"], vectors, atol=1e-4)
    assert theirs["prompt_eval_count"] == answer.usage.prompt_tokens
    old = llama.embeddings(MODEL, texts[3])["embedding"]
    np.testing.assert_allclose(old, vectors[3], atol=1e-4)


def test_many_streams_at_once_say_what_one_says(gpt: openai.OpenAI) -> None:
    questions = ["What is 2+2?", FRANCE, "Name a fruit.", "Say hi.", "Who wrote Hamlet?"]

    def ask(text: str) -> str:
        stream = gpt.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": text}], stream=True, max_tokens=12,
            temperature=0,
        )  # fmt: skip
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    alone = [ask(text) for text in questions]
    rounds = max(1, STREAMS // len(questions))
    with ThreadPoolExecutor(STREAMS) as pool:
        together = list(pool.map(ask, questions * rounds))
    assert together == alone * rounds


def test_emoji_stream_whole(live: tuple[str, Any]) -> None:
    text = "👩‍👩‍👧‍👦🏳️‍🌈😀"
    messages = [{"role": "user", "content": f"Repeat exactly: {text}"},
                {"role": "assistant", "content": f"{text} {text}"},
                {"role": "user", "content": "Again!"}]  # fmt: skip
    body = {"messages": messages, "stream": True, "max_tokens": 60}
    answer = httpx.post(f"{live[0]}/v1/chat/completions", json=body, timeout=60)
    pieces = [json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
              for line in answer.text.splitlines() if line.startswith("data: {")]  # fmt: skip
    assert not any("\ufffd" in piece for piece in pieces[:-2])


def test_a_client_that_leaves(live: tuple[str, Any], gpt: openai.OpenAI) -> None:
    _, engine = live
    stream = gpt.chat.completions.create(
        model=MODEL, messages=ASK, stream=True, max_tokens=1500, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    with pytest.raises(openai.APITimeoutError):
        gpt.with_options(timeout=0.3).chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=1500, extra_body={"ignore_eos": True}
        )
    end = time.monotonic() + 20
    while engine.has_work:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert engine.cache.in_use == 0


# Anthropic


def test_messages(claude: anthropic.Anthropic) -> None:
    message = claude.messages.create(model=MODEL, max_tokens=30, messages=ASK)
    block: Any = message.content[0]
    assert (block.text, message.stop_reason) == (PARIS, "end_turn")
    with claude.messages.stream(model=MODEL, max_tokens=30, messages=ASK) as stream:
        assert "".join(stream.text_stream) == PARIS
        final = stream.get_final_message()
    assert final.usage.output_tokens == message.usage.output_tokens == 8
    counted = claude.messages.count_tokens(model=MODEL, messages=ASK).input_tokens
    usage = message.usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    short = claude.messages.create(model=MODEL, max_tokens=3, messages=ASK, system="Be kind.")
    assert short.stop_reason == "max_tokens"
    stopped = claude.messages.create(
        model=MODEL, max_tokens=30, messages=ASK, stop_sequences=["France"]
    )
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "France")


def test_messages_with_tools(claude: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "weather", "description": "The weather", "input_schema": CITY}]
    message = claude.messages.create(
        model=MODEL, max_tokens=80, messages=WEATHER, tools=tools, tool_choice={"type": "any"}
    )
    call: Any = message.content[0]
    assert (call.type, call.name, message.stop_reason) == ("tool_use", "weather", "tool_use")
    assert isinstance(call.input["city"], str)
    with claude.messages.stream(
        model=MODEL, max_tokens=80, messages=WEATHER, tools=tools, tool_choice={"type": "any"}
    ) as stream:
        streamed: Any = stream.get_final_message().content[0]
    assert streamed.input == call.input
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    messages: Any = [*WEATHER, {"role": "assistant", "content": message.content},
                     {"role": "user", "content": [result]}]  # fmt: skip
    assert claude.messages.create(model=MODEL, max_tokens=20, messages=messages).content


def test_message_errors(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="claude", max_tokens=3, messages=ASK)
    with pytest.raises(anthropic.BadRequestError, match="unknown"):
        claude.messages.create(model=MODEL, max_tokens=3, messages=ASK, extra_body={"unknown": 1})


# Ollama


def test_ollama(llama: ollama.Client) -> None:
    assert llama.list().models[0].model == MODEL and llama.ps().models[0].model == MODEL
    assert "completion" in (llama.show(MODEL).capabilities or ())
    answer = llama.chat(MODEL, ASK)
    assert answer.message.content == PARIS and answer.done
    assert "".join(p.message.content or "" for p in llama.chat(MODEL, ASK, stream=True)) == PARIS
    assert llama.generate(MODEL, FRANCE, options={"num_predict": 3}).done_reason == "length"
    assert "".join(p.response or "" for p in llama.generate(MODEL, FRANCE, stream=True)) == PARIS
    told = llama.chat(MODEL, [{"role": "user", "content": "Describe a person."}],
                      format=Person.model_json_schema(), options={"num_predict": 80})  # fmt: skip
    assert Person.model_validate_json(told.message.content or "").name
    assert llama.chat(MODEL, WEATHER, tools=TOOLS, options={"num_predict": 20}).message
    with pytest.raises(ollama.ResponseError) as caught:
        llama.chat("other", ASK)
    assert caught.value.status_code == 404


def test_a_wrong_key(smollm2_gguf: Path, cache_dir: Path) -> None:
    with served(artifact(smollm2_gguf, cache_dir), api_keys=("a-right-key",)) as (url, _):
        for key, fine in (("a-right-key", True), ("a-wrong-key", False)):
            gpt = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
            claude = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
            with gpt, claude:
                if fine:
                    assert gpt.models.list().data
                    assert claude.messages.create(model=MODEL, max_tokens=1, messages=ASK)
                    continue
                with pytest.raises(openai.AuthenticationError):
                    gpt.models.list()
                with pytest.raises(anthropic.AuthenticationError):
                    claude.messages.create(model=MODEL, max_tokens=1, messages=ASK)
