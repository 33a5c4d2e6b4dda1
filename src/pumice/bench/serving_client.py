"""One request to a server that speaks OpenAI's protocol, timed piece by piece."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pumice.bench.http_client import Answer, Client
from pumice.bench.serving import Outcome, Prompt
from pumice.errors import DeviceError, UsageError

ENDPOINTS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True)
class Endpoint:
    """Where requests go, and what they say besides the prompt. url: without `/v1`."""

    url: str
    model: str | None = None
    kind: str = "chat"
    api_key: str | None = None
    timeout: float = 600.0
    fields: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in ENDPOINTS:
            raise UsageError(f"--endpoint is {self.kind!r}; allowed: {', '.join(ENDPOINTS)}")
        if not self.timeout > 0:
            raise UsageError(f"--timeout is {self.timeout:g}; it must be above 0 seconds")

    def client(self) -> Client:
        """A client with as many connections as there are requests at a time."""
        headers = {"Accept-Encoding": "identity"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return Client(self.url, headers, self.timeout)

    def body(self, prompt: Prompt) -> dict[str, Any]:
        """A request's JSON."""
        said: dict[str, Any] = {"prompt": prompt.text}
        if self.kind == "chat":
            said = {"messages": [{"role": "user", "content": prompt.text}]}
        return {
            "model": self.model, **said, "max_tokens": prompt.max_tokens, "stream": True,
            "stream_options": {"include_usage": True}, **self.fields,
        }  # fmt: skip


def server_url(text: str) -> str:
    """A URL as a person gives it → scheme, host and path without `/v1`."""
    url = text if "://" in text else f"http://{text}"
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"the server's URL is {text!r}; allowed: http://… and https://…")
    return url.rstrip("/").removesuffix("/v1")


async def first_model(endpoint: Endpoint) -> str:
    """The first model that a server offers."""
    async with endpoint.client() as client:
        answer = await client.request("GET", "/v1/models")
    if not answer.whole:
        raise DeviceError(
            f"{endpoint.url} does not answer: {answer.error}",
            hint="`pumice serve` starts a server; without a URL the benchmark starts its own.",
        )
    if answer.status != 200:
        raise DeviceError(f"{endpoint.url}/v1/models: {_reason(answer)}")
    try:
        return str(json.loads(answer.body)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise DeviceError(f"{endpoint.url}/v1/models names no model; --model does") from None


async def ask(client: Client, endpoint: Endpoint, prompt: Prompt) -> Outcome:
    """Sends a prompt and reads the answer. Whatever goes wrong is in the outcome."""
    body = json.dumps(endpoint.body(prompt)).encode()
    outcome = Outcome(time.perf_counter())
    answer = await client.request("POST", ENDPOINTS[endpoint.kind], body)
    outcome.end = time.perf_counter()
    if answer.status not in (0, 200):
        outcome.error = _reason(answer)
        return outcome
    try:
        outcome.error = _read(answer, outcome)
    except (ValueError, KeyError, TypeError, AttributeError):
        outcome.error = "a chunk is not of OpenAI's shape"
    return outcome


def _read(answer: Answer, outcome: Outcome) -> str | None:
    """Reads a stream into an outcome; returns what is wrong with it."""
    for line, now in _lines(answer):
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            if not outcome.output_tokens:  # a server that tells no usage
                outcome.output_tokens = len(outcome.arrivals)
            return None
        chunk = json.loads(data)
        if "error" in chunk:
            return f"error in the stream: {chunk['error'].get('message', '')[:80]}"
        usage = chunk.get("usage")
        if usage:
            outcome.prompt_tokens = usage["prompt_tokens"]
            outcome.output_tokens = usage["completion_tokens"]
        for choice in chunk["choices"]:
            delta = choice.get("delta") or {}
            parts = ("content", "reasoning_content", "reasoning", "tool_calls")
            if choice.get("text") or any(delta.get(part) for part in parts):
                outcome.arrivals.append(now)
            outcome.finish_reason = choice.get("finish_reason") or outcome.finish_reason
    return answer.error or "the stream broke off"


def _lines(answer: Answer) -> Iterator[tuple[bytes, float]]:
    """Lines of a body with the time at which each was whole."""
    rest, now = b"", 0.0
    for now, part in answer.parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line, now
    if rest:
        yield rest, now


def _reason(answer: Answer) -> str:
    """A refusal in a few words."""
    try:
        message = str(json.loads(answer.body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = ""
    return f"{answer.status} {message[:80]}".rstrip()
