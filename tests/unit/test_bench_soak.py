"""The soak test's own judgement: every check can fail, and its clients see what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from serving_fake import serve_app
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pumice.bench.soak import Evidence, judge
from pumice.bench.soak_clients import CHAT, Clients, Report, Solo, questions, solo
from pumice.bench.soak_server import State

ENGINE = {"running": 0.0, "waiting": 0.0, "blocks": 128.0, "blocks_in_use": 0.0}
STATE = State(tasks=1, threads=12, descriptors=8, rss_bytes=300 << 20, engine=ENGINE)
MEMORY = [300 << 20] * 30


def evidence(**changes: Any) -> Evidence:
    report = Report(compared=10)
    good = Evidence(100, 0, STATE, STATE, MEMORY, report, ["all well\n"], 0)
    return replace(good, **changes)


def failed(seen: Evidence) -> list[str]:
    return [check.name for check in judge(seen) if not check.passed]


def test_a_good_server_passes() -> None:
    assert failed(evidence()) == []
    assert failed(evidence(cut=5)) == []


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"cut": 6}, "clients that came to their end"),
        ({"report": Report(compared=3, ties=3)}, "answers equal to those given alone"),
        ({"report": Report()}, "answers equal to those given alone"),
        ({"report": Report(compared=9, differing=["x"])}, "answers equal to those given alone"),
        ({"report": Report(compared=9, wrong=["x"])}, "nothing wrong for a client"),
        ({"after": replace(STATE, engine={**ENGINE, "waiting": 1})}, "requests that run or wait"),
        ({"after": replace(STATE, engine={**ENGINE, "blocks_in_use": 1})}, "cache blocks in use"),
        ({"after": replace(STATE, threads=13)}, "threads"),
        ({"after": replace(STATE, descriptors=9)}, "descriptors"),
        ({"after": replace(STATE, tasks=2)}, "tasks"),
        ({"after": replace(STATE, rss_bytes=330 << 20)}, "memory given back"),
        ({"memory": [(300 + 2 * i) << 20 for i in range(30)]}, "memory flat under load"),
        ({"log": ["Traceback (most recent call last):\n"]}, "no fault in the log"),
        ({"status": None}, "ends when told"),
    ],
)
def test_every_check_can_fail(changes: dict[str, Any], name: str) -> None:
    assert failed(evidence(**changes)) == [name]


SENT = {"messages", "max_tokens", "temperature", "stream"}
LEADS = {"the": 3.0, " same": 0.01}


class Service:
    """Answers every question with the same text; `spoil(count)` may replace an answer."""

    def __init__(self, spoil: Callable[[int], Response | str | None] = lambda count: None) -> None:
        self.spoil = spoil
        self.count = 0

    async def chat(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
            good = set(body) - {"logprobs", "top_logprobs"} == SENT
        except (ValueError, TypeError, RecursionError):
            good = False
        if not good:
            return JSONResponse({"error": {"message": "no"}}, 400)
        self.count += 1
        spoiled = self.spoil(self.count)
        if isinstance(spoiled, Response):
            return spoiled
        text = "the same" if spoiled is None else spoiled
        if not body["stream"]:
            tops = [
                {"token": t, "top_logprobs": [{"logprob": -1.0 - lead}, {"logprob": -1.0}]}
                for t, lead in LEADS.items()
            ]
            choice = {"message": {"content": text}, "logprobs": {"content": tops}}
            return JSONResponse({"choices": [choice]})
        parts = [{"choices": [{"delta": {"content": c}}]} for c in text]
        lines = [f"data: {json.dumps(part)}\n\n" for part in parts]
        return StreamingResponse(iter([*lines, "data: [DONE]\n\n"]), media_type="text/event-stream")


def crowd(spoil: Callable[[int], Response | str | None] = lambda count: None) -> Report:
    """Sixty clients, after the questions were answered alone."""
    service = Service()
    app = Starlette(routes=[Route(CHAT, service.chat, methods=["POST"])])

    async def act(port: int) -> Report:
        answers = {q: await solo(port, q) for q in questions(5, 0)}
        [answer] = set(answers.values())
        assert answer.text == "the same" and answer.tokens == tuple(LEADS)
        assert answer.leads == pytest.approx(tuple(LEADS.values()))
        service.spoil = spoil
        clients = Clients(port, answers, seed=1, tie=0.02)
        await asyncio.gather(*(clients.one() for _ in range(60)))
        return clients.report

    with serve_app(app) as url:
        return asyncio.run(act(int(url.rpartition(":")[2])))


def test_clients_of_a_good_server() -> None:
    report = crowd()
    assert report.wrong == [] and report.differing == [] and report.compared > 20
    assert sum(report.done.values()) == 60 and len(report.done) == 6


def test_clients_see_another_answer() -> None:
    report = crowd(lambda count: "another" if count % 2 else None)
    assert 0 < len(report.differing) < report.compared and report.wrong == []


def test_clients_know_a_tie() -> None:
    report = crowd(lambda count: "the other" if count % 2 else None)
    assert 0 < report.ties < report.compared and report.differing == []


def test_where_answers_part() -> None:
    alone = Solo("ab cd", ("ab", " c", "d"), (0.5, 0.01, 0.5))
    assert alone.parts_at_a_tie("ab x", 0.02)
    assert alone.parts_at_a_tie("ab cx", 0.02)  # after a rival that begins alike
    assert not alone.parts_at_a_tie("ax", 0.02)
    assert not alone.parts_at_a_tie("ab x", 0.0)
    assert not alone.parts_at_a_tie("ab cd and more", 0.02)
    assert not Solo("", (), ()).parts_at_a_tie("x", 0.02)


def test_clients_come_again_when_the_server_is_busy() -> None:
    busy = {"error": {"message": "busy"}}
    report = crowd(lambda count: JSONResponse(busy, 429) if 15 < count < 19 else None)
    assert report.busy == 3 and report.wrong == [] and report.differing == []


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (lambda: JSONResponse({}, 500), "status 500"),
        (lambda: StreamingResponse(iter(["data: {}\n\n"])), "Error"),
        (
            lambda: StreamingResponse(iter(['data: {"error": {"message": "x"}}\n\n'])),
            "error in a s",
        ),
        (lambda: StreamingResponse(iter([])), "without its end"),
    ],
)
def test_clients_see_faults(response: Callable[[], Response], message: str) -> None:
    report = crowd(lambda count: response() if count % 3 == 0 else None)
    assert any(message in wrong for wrong in report.wrong), report.wrong


def test_questions_differ_and_repeat() -> None:
    assert questions(24, 5) == questions(24, 5) != questions(24, 6)
    assert len({q.text for q in questions(24, 5)}) == 24
