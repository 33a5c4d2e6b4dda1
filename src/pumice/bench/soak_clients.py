"""The clients of the soak test: those who behave, those who leave, and those who send nonsense."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.bench.soak_http import connection, events, exchange

CHAT = "/v1/chat/completions"
_TOPICS = (
    "stones", "rivers", "the moon", "bread", "a small boat", "winter", "an old clock", "bees",
    "a long road", "salt", "the number seven", "a quiet library", "volcanoes", "paper", "tea",
    "rust",
)  # fmt: skip
_QUESTIONS = (
    "Write a line about {}.",
    "What do you know about {}? Be brief.",
    "Name 3 facts on {}.",
)


@dataclass(frozen=True)
class Question:
    """A greedy request. Its answer depends on nothing else."""

    text: str
    max_tokens: int

    def body(self, *, stream: bool, **more: Any) -> bytes:
        request = {
            "messages": [{"role": "user", "content": self.text}],
            "max_tokens": self.max_tokens, "temperature": 0, "stream": stream, **more,
        }  # fmt: skip
        return json.dumps(request).encode()


@dataclass(frozen=True)
class Solo:
    """A question's answer when nobody else asks. tokens: their texts. leads: by how much each was
    likelier than the next best token, in nats.

    The sums of a step depend on the batch in their last bits, so that two tokens that are as good
    as equally likely may change places: an answer may part from this one there, and only there.
    """

    text: str
    tokens: tuple[str, ...]
    leads: tuple[float, ...]

    def parts_at_a_tie(self, text: str, tie: float) -> bool:
        """Whether another answer differs first where the lead is below `tie`. The token before
        counts as well: its rival may begin with the same characters.
        """
        pairs = zip(text, self.text, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(text), len(self.text)))
        end = 0
        for place, token in enumerate(self.tokens):
            end += len(token)
            if end > same:
                return min(self.leads[max(0, place - 1) : place + 1]) < tie
        return bool(self.leads) and self.leads[-1] < tie


@dataclass
class Report:
    """What the clients saw. done: kind → clients that came to their end. ties: answers that parted
    from those given alone at a tie. differing: at another place. wrong: what else must not be.
    busy: answers 429, asked again.
    """

    done: Counter[str] = field(default_factory=Counter)
    compared: int = 0
    ties: int = 0
    differing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    busy: int = 0


def questions(count: int, seed: int) -> list[Question]:
    """Different questions with answers of 8 to 32 tokens."""
    draw = random.Random(seed)
    texts = [form.format(topic) for form in _QUESTIONS for topic in _TOPICS]
    return [Question(text, draw.randint(8, 32)) for text in draw.sample(texts, count)]


async def solo(port: int, question: Question) -> Solo:
    """Asks when nobody else does."""
    body = question.body(stream=False, logprobs=True, top_logprobs=2)
    answer = await exchange(port, "POST", CHAT, body)
    choice = json.loads(answer.body)["choices"][0]
    entries = choice["logprobs"]["content"]
    values = [sorted((top["logprob"] for top in e["top_logprobs"]), reverse=True) for e in entries]
    return Solo(
        choice["message"]["content"],
        tuple(entry["token"] for entry in entries),
        tuple(best - next_best for best, next_best in values),
    )


class Clients:
    """Draws clients and lets them act. answers: of the questions, each asked alone. tie: see
    `Solo`.
    """

    def __init__(
        self, port: int, answers: Mapping[Question, Solo], seed: int, *, tie: float
    ) -> None:
        self._port = port
        self._tie = tie
        self._answers = answers
        self._questions = list(answers)
        self._draw = random.Random(seed)
        self.report = Report()
        kinds: dict[str, tuple[int, Callable[[random.Random], Awaitable[None]]]] = {
            "streams": (45, self._stream),
            "asks": (10, self._ask),
            "cancels a stream": (15, self._cancel_stream),
            "leaves before the answer": (10, self._leave),
            "is killed in a stream": (10, self._killed),
            "sends nonsense": (10, self._nonsense),
        }
        self.names = list(kinds)
        self._weights = [weight for weight, _ in kinds.values()]
        self._acts = {name: act for name, (_, act) in kinds.items()}

    async def one(self) -> None:
        """One client, from its connection to its end."""
        draw = random.Random(self._draw.random())
        [kind] = draw.choices(self.names, self._weights)
        try:
            await self._acts[kind](draw)
        except (OSError, ValueError, KeyError, IndexError, EOFError) as error:
            self.report.wrong.append(f"a client that {kind}: {type(error).__name__}: {error}")
        self.report.done[kind] += 1

    async def _stream(self, draw: random.Random) -> None:
        question = draw.choice(self._questions)
        while True:
            async with connection(self._port) as line:
                await line.send("POST", CHAT, question.body(stream=True))
                status = await line.head()
                if status == 200:
                    text, ended = "", False
                    async for event in events(line):
                        ended = event is None
                        text += "" if event is None else self._text_of(event)
                    if not ended:
                        self.report.wrong.append("a stream without its end")
                    self._compare(question, text)
                    return
            if not await self._again(status, draw):
                return

    async def _ask(self, draw: random.Random) -> None:
        question = draw.choice(self._questions)
        while True:
            answer = await exchange(self._port, "POST", CHAT, question.body(stream=False))
            if answer.status == 200:
                message = json.loads(answer.body)["choices"][0]["message"]
                self._compare(question, message["content"])
                return
            if not await self._again(answer.status, draw):
                return

    async def _cancel_stream(self, draw: random.Random) -> None:
        """Closes the connection after some pieces."""
        async with connection(self._port) as line:
            await line.send("POST", CHAT, draw.choice(self._questions).body(stream=True))
            if not self._started(await line.head()):
                return
            left = draw.randint(1, 8)
            async for _ in events(line):
                left -= 1
                if not left:
                    return

    async def _leave(self, draw: random.Random) -> None:
        """Asks for a whole answer and is gone before it comes."""
        async with connection(self._port) as line:
            await line.send("POST", CHAT, draw.choice(self._questions).body(stream=False))
            await asyncio.sleep(draw.uniform(0, 0.3))

    async def _killed(self, draw: random.Random) -> None:
        """Resets the connection after some pieces, half a request, or nothing."""
        async with connection(self._port) as line:
            if draw.random() < 0.2:
                body = draw.choice(self._questions).body(stream=True)
                await line.send("POST", CHAT, body[: len(body) // 2], length=len(body))
                await asyncio.sleep(draw.uniform(0, 0.1))
            elif draw.random() < 0.9:
                await line.send("POST", CHAT, draw.choice(self._questions).body(stream=True))
                if self._started(await line.head()):
                    left = draw.randint(1, 8)
                    async for _ in events(line):
                        left -= 1
                        if not left:
                            break
            line.kill()

    async def _nonsense(self, draw: random.Random) -> None:
        """What cannot be answered is refused, with a status that says whose fault it is."""
        method, path, body = draw.choice(NONSENSE)
        answer = await exchange(self._port, method, path, body)
        if not 400 <= answer.status < 500:
            self.report.wrong.append(f"{method} {path} {body[:40]!r}: status {answer.status}")

    def _started(self, status: int) -> bool:
        if status == 429:
            self.report.busy += 1
        elif status != 200:
            self.report.wrong.append(f"status {status} for a good request")
        return status == 200

    async def _again(self, status: int, draw: random.Random) -> bool:
        """Whether to ask again: when the server was busy, after a moment."""
        self._started(status)
        if status == 429:
            await asyncio.sleep(draw.uniform(0.5, 2))
        return status == 429

    def _compare(self, question: Question, text: str) -> None:
        self.report.compared += 1
        alone = self._answers[question]
        if text == alone.text:
            return
        if alone.parts_at_a_tie(text, self._tie):
            self.report.ties += 1
        else:
            self.report.differing.append(f"{question.text!r}: {text!r} instead of {alone.text!r}")

    def _text_of(self, event: dict[str, Any]) -> str:
        if "error" in event:
            self.report.wrong.append(f"an error in a stream: {event['error']}")
            return ""
        choices = event["choices"]
        return str(choices[0]["delta"].get("content") or "") if choices else ""


def _chat(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()


NONSENSE: tuple[tuple[str, str, bytes], ...] = (
    ("POST", CHAT, b""),
    ("POST", CHAT, b"{"),
    ("POST", CHAT, b"\xff\xfe\x00"),
    ("POST", CHAT, b"[]"),
    ("POST", CHAT, b'"text"'),
    ("POST", CHAT, b"{}"),
    ("POST", CHAT, b'{"messages": []}'),
    ("POST", CHAT, b'{"messages": [{"role": "x", "content": "y"}]}'),
    ("POST", CHAT, b"[" * 5000),
    ("POST", CHAT, b'{"messages": ' + b'{"a":' * 500 + b"1" + b"}" * 501),
    ("POST", CHAT, _chat(max_tokens=-1)),
    ("POST", CHAT, _chat(max_tokens="many")),
    ("POST", CHAT, _chat(temperature="hot")),
    ("POST", CHAT, _chat(temperature=-3)),
    ("POST", CHAT, _chat(no_such_field=1)),
    ("POST", CHAT, _chat(stop=[""])),
    ("POST", CHAT, _chat(n=10**9)),
    ("POST", CHAT, _chat(logit_bias={"x": 1})),
    ("POST", CHAT, _chat(response_format={"type": "json_schema"})),
    ("POST", CHAT, _chat(tools=[{"type": "function"}])),
    ("POST", CHAT, _chat(model="no-such-model")),
    ("POST", CHAT, b'{"messages": [{"role": "user", "content": "' + b"word " * 20000 + b'"}]}'),
    ("POST", "/v1/nothing", b"{}"),
    ("GET", CHAT, b""),
    ("GET", "/..%2f..%2fetc/passwd", b""),
)
