"""An application on a simulated model that says what a test wants, and short ways to ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import engine_toy
import httpx
import numpy as np

from pumice.engine.async_engine import AsyncEngine
from pumice.engine.engine import LLMEngine
from pumice.server.app import create_app
from pumice.server.context import ServerContext
from pumice.server.settings import ServerSettings

VOCAB = engine_toy.tokenizer().vocab_size
ASSISTANT = "<|im_start|>assistant\n"
USER = [{"role": "user", "content": "the quick brown fox"}]


def says(text: str, *, then_end: bool = True) -> Callable[[np.ndarray], np.ndarray]:
    """A model that answers every conversation with `text`."""
    tokenizer = engine_toy.tokenizer()
    begin = tokenizer.encode(ASSISTANT, add_special=False, parse_special=True)
    script = tokenizer.encode(text, add_special=False, parse_special=True)

    def logits(given: np.ndarray) -> np.ndarray:
        tokens = given.tolist()
        row = np.zeros(VOCAB, np.float32)
        start = max(
            (i + len(begin) for i in range(len(tokens)) if tokens[i : i + len(begin)] == begin),
            default=len(tokens),
        )
        said = len(tokens) - start
        if said < len(script):
            row[script[said]] = 30
        elif then_end:
            row[engine_toy.EOS] = 30
        else:
            row[script[said % len(script)]] = 30
        return row

    return logits


def make_engine(answer: str | None = None, *, then_end: bool = True, **changes: Any) -> LLMEngine:
    """answer: what the model says; None: a hash of the prompt."""
    sizes = {"context_length": 400, "num_blocks": 800, "max_tokens": 64, **changes}
    logits = None if answer is None else says(answer, then_end=then_end)
    return engine_toy.make(engine_toy.limits(**sizes), logits=logits)[0]


class Answer:
    """A response, its JSON, and its events if it is a stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.text = response.text

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def data(self) -> list[Any]:
        """Server-sent events' data, without [DONE]; or lines of JSON."""
        if "ndjson" in self.headers["content-type"]:
            return [json.loads(line) for line in self.text.splitlines()]
        lines = [line[6:] for line in self.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]


class Client:
    """Asks an application; each call is one event loop's."""

    def __init__(self, engine: LLMEngine, settings: ServerSettings, **options: Any) -> None:
        self.engine = engine
        self._settings = settings
        self._options = options

    def run(self, work: Callable[[httpx.AsyncClient, ServerContext], Any]) -> Any:
        async def main() -> Any:
            async with AsyncEngine(self.engine) as running:
                context = ServerContext(running, self._settings, **self._options)
                transport = httpx.ASGITransport(create_app(context))
                async with httpx.AsyncClient(
                    transport=transport, base_url="http://localhost"
                ) as client:
                    return await work(client, context)

        return asyncio.run(main())

    def ask(self, *requests: tuple[str, str, dict[str, Any]]) -> list[Answer]:
        """(method, path, httpx's arguments) each, one after the other on one server."""

        async def work(client: httpx.AsyncClient, _: ServerContext) -> list[Answer]:
            return [Answer(await client.request(m, p, **more)) for m, p, more in requests]

        answers: list[Answer] = self.run(work)
        return answers

    def post(self, path: str, body: Any, **more: Any) -> Answer:
        if isinstance(body, bytes):
            return self.ask(("POST", path, {"content": body, **more}))[0]
        return self.ask(("POST", path, {"json": body, **more}))[0]

    def get(self, path: str, **more: Any) -> Answer:
        return self.ask(("GET", path, more))[0]


def client(
    answer: str | None = None, *, engine: LLMEngine | None = None, **settings: Any
) -> Client:
    """settings: `ServerSettings`'."""
    values = {"names": ("toy",), "access_log": False, **settings}
    return Client(engine or make_engine(answer), ServerSettings(**values))


@contextmanager
def idle_after(engine: LLMEngine) -> Iterator[None]:
    """Nothing is left of the requests within."""
    yield
    engine_toy.assert_idle(engine)
