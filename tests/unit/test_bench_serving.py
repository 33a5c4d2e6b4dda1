"""Serving benchmarks: the figures, the loads, what goes wrong, and the command."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serving_fake import FakeServer
from typer.testing import CliRunner

from pumice.bench.http_client import Answer, Client
from pumice.bench.serving import Measurement, Objective, Outcome, Point, Prompt
from pumice.bench.serving_client import Endpoint, first_model, server_url
from pumice.bench.serving_load import measure, parse_points, warm_up
from pumice.bench.serving_workload import random_prompts, trace_prompts
from pumice.cli.app import app
from pumice.errors import DeviceError, ModelFileError, PumiceError, StorageError, UsageError


def outcome(start: float, *arrivals: float, tokens: int | None = None, **more: Any) -> Outcome:
    return Outcome(
        start, arrivals[-1] if arrivals else start, list(arrivals), 10,
        len(arrivals) if tokens is None else tokens, **more,
    )  # fmt: skip


def test_the_figures() -> None:
    outcomes = [
        outcome(0.0, 0.1, 0.2, 0.4),
        outcome(0.05, 0.25, 0.35, tokens=5),  # two tokens came with one piece
        outcome(0.3, 0.7),
        outcome(0.5, error="429 full"),
        outcome(0.6),
    ]
    measured = Measurement(Point(concurrency=2), outcomes, 2.0)
    row = measured.row(Objective(0.21, 0.1))
    assert row["requests"] == 5 and row["completed"] == 3
    assert row["errors"] == {"429 full": 1, "no text in the answer": 1}
    assert row["output_tokens"] == 9 and row["output_tokens_per_s"] == 4.5
    assert row["total_tokens_per_s"] == 19.5 and row["requests_per_s"] == 1.5
    assert row["ttft_ms"] == pytest.approx(
        {"mean": 233.333, "p50": 200, "p90": np.percentile([100, 200, 400], 90), "p99": 396},
        abs=1e-3,
    )
    assert measured.values("tpot") == pytest.approx([0.15, 0.025])
    assert sorted(measured.values("itl")) == pytest.approx([0.1, 0.1, 0.2])
    # The first answer was too slow between tokens, the third to begin with.
    assert row["goodput_requests_per_s"] == 0.5 and row["slo_kept"] == 0.2
    assert row["peak_concurrency"] == 3


def test_no_answer_at_all() -> None:
    measured = Measurement(Point(rate=1.0), [outcome(0.0, error="x")], 1.0)
    row = measured.row(Objective(0.1))
    assert row["ttft_ms"] is None and row["completed"] == 0 and row["goodput_requests_per_s"] == 0


def test_an_objective_must_be_possible() -> None:
    assert not Objective() and Objective(tpot=0.1)
    assert Objective(tpot=0.1).kept(outcome(0.0, 5.0))  # one token has no TPOT
    with pytest.raises(UsageError, match="--slo-ttft is 0 ms"):
        Objective(0.0)


def load(server: FakeServer, point: Point, count: int, **options: Any) -> Measurement:
    prompts = [Prompt(f"p{i}", 3) for i in range(count)]
    with server.serving() as url:
        return asyncio.run(measure(Endpoint(url, "m", **options), point, prompts, seed=1))


def test_a_closed_load_keeps_so_many_under_way() -> None:
    server = FakeServer()
    measured = load(server, Point(concurrency=3), 10, api_key="k")
    assert server.peak == 3 == measured.peak
    assert sorted(b["messages"][0]["content"] for b in server.bodies) == [
        f"p{i}" for i in range(10)
    ]
    assert server.keys == {"Bearer k"}
    assert all(
        o.error is None and o.output_tokens == 3 == len(o.arrivals) for o in measured.outcomes
    )
    assert all(o.prompt_tokens == 5 and o.finish_reason == "length" for o in measured.outcomes)
    assert measured.seconds > 0


def test_an_open_load_waits_for_nobody() -> None:
    server = FakeServer(gate=12)  # a closed load of fewer would wait for ever
    measured = load(server, Point(rate=400.0), 12, kind="completions")
    assert server.peak == 12 and len(measured.whole) == 12
    assert server.bodies[0]["prompt"] == "p0"
    starts = [o.start for o in measured.outcomes]
    assert starts == sorted(starts)


def test_what_goes_wrong_is_counted() -> None:
    server = FakeServer(behaviours=["429", "broken", "garbage", "fault", "empty", "no usage", "ok"])
    measured = load(server, Point(concurrency=1), 7)
    assert measured.errors == {
        "429 the queue is full": 1,
        "the stream broke off": 1,
        "a chunk is not of OpenAI's shape": 1,
        "error in the stream: out of luck": 1,
        "no text in the answer": 1,
    }
    assert [o.output_tokens for o in measured.whole] == [3, 3]


def test_nobody_there() -> None:
    endpoint = Endpoint("http://127.0.0.1:9", "m", timeout=5)
    measured = asyncio.run(measure(endpoint, Point(concurrency=1), [Prompt("x", 1)], seed=0))
    assert measured.errors == {"ConnectionRefusedError": 1}
    with pytest.raises(DeviceError, match="no request of the warm-up"):
        asyncio.run(warm_up(endpoint, [Prompt("x", 1)]))
    with pytest.raises(DeviceError, match="does not answer"):
        asyncio.run(first_model(endpoint))


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def one_request(answer: bytes, *, timeout: float = 5, close: bool = False) -> Answer:
    """What a client has of a server that sends these bytes for any request."""

    tasks: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        for i in range(0, len(answer), 7):
            writer.write(answer[i : i + 7])
            await writer.drain()
        if not close:
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}/base", {}, timeout) as client:
            had = await client.request("GET", "/x")
        await asyncio.gather(*filter(None, tasks), return_exceptions=True)
        return had


@pytest.mark.parametrize(
    ("sent", "body", "error"),
    [
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", b"hello", None),
        (CONTINUE + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", None),
        (CHUNKED + b"5\r\nhel", b"hel", "closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsome", b"some", "closed"),
        (b"SMTP ready\r\n", b"", "no HTTP"),
        (b"", b"", "closed"),
    ],
)  # fmt: skip
def test_what_a_client_has_of_an_answer(sent: bytes, body: bytes, error: str | None) -> None:
    answer = asyncio.run(one_request(sent, close=error is not None))
    assert answer.body == body and answer.whole == (error is None)
    assert error is None if answer.error is None else str(error) in answer.error


def test_a_silent_server_is_not_waited_for() -> None:
    answer = asyncio.run(one_request(b"HTTP/1.1 200 OK\r\n", timeout=0.2))
    assert not answer.whole and answer.error == "nothing came for 0.2 s"


def test_a_client_uses_its_connections_again() -> None:
    seen: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                assert b"\r\nHost: 127.0.0.1:" in head and head.startswith(b"POST /x HTTP/1.1")
                assert await reader.readexactly(2) == b"{}"
                close = b"Connection: close\r\n" if len(seen) == 2 else b""
                writer.write(b"HTTP/1.1 204 No Content\r\n" + close + b"\r\n")
        writer.close()

    async def ask() -> list[Answer]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with Client(f"http://127.0.0.1:{port}", {}, 5) as client:
                first = [await client.request("POST", "/x", b"{}") for _ in range(3)]
                assert len(seen) == 1
                both = [client.request("POST", "/x", b"{}") for _ in range(2)]
                answers = first + list(await asyncio.gather(*both))
            await asyncio.gather(*filter(None, seen))
            return answers

    answers = asyncio.run(ask())
    assert [a.status for a in answers] == [204] * 5 and all(a.whole for a in answers)
    assert len(seen) == 2


@pytest.mark.parametrize("url", ["http://", "http://x:port", "http://x:99999"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="no URL"):
        Client(url, {}, 1)
    with pytest.raises(UsageError, match="Authorization"):
        Client("http://x", {"Authorization": "Bearer a\r\nb"}, 1)


def test_random_prompts() -> None:
    prompts = random_prompts(50, 40, 20, spread=0.5, seed=3, shared_tokens=4)
    assert prompts == random_prompts(50, 40, 20, spread=0.5, seed=3, shared_tokens=4)
    assert prompts != random_prompts(50, 40, 20, spread=0.5, seed=4, shared_tokens=4)
    lengths = [len(p.text.split()) - 4 for p in prompts]
    assert min(lengths) >= 20 and max(lengths) <= 60 and len(set(lengths)) > 10
    assert {p.text.split()[3] for p in prompts} == {prompts[0].text.split()[3]}
    assert len({p.text for p in prompts}) == 50
    assert {p.max_tokens for p in random_prompts(9, 4, 20, spread=0, seed=0)} == {20}
    for bad in ({"spread": 1.0}, {"spread": 0.0, "shared_tokens": -1}):
        with pytest.raises(UsageError):
            random_prompts(1, 1, 1, seed=0, **bad)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--output is 0"):
        random_prompts(1, 1, 0, spread=0, seed=0)


def test_a_trace(tmp_path: Path) -> None:
    def turns(*texts: str) -> list[dict[str, str]]:
        sides = ("human", "gpt")
        return [{"from": sides[i % 2], "value": text} for i, text in enumerate(texts)]

    path = tmp_path / "trace.json"
    items: list[Any] = [
        {"id": "a", "conversations": turns("One?", "x" * 40, "Two?", "y")},
        {"conversations": [{"from": "gpt", "value": "Hi"}, *turns("Three?", "z" * 4000)]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "Four?"},
                      {"role": "assistant", "content": "w"}]},
        {"conversations": turns("Nobody answers")}, {"conversations": []}, "x", {}, {"a": None},
    ]  # fmt: skip
    expected = {Prompt("One?", 10), Prompt("Three?", 100), Prompt("Four?", 1)}
    path.write_text(json.dumps(items))
    prompts = trace_prompts(path, 7, longest=100, seed=0)
    assert set(prompts[:3]) == expected and prompts[:3] == prompts[3:6]
    path.write_text("\n".join(json.dumps(item) for item in items))
    assert trace_prompts(path, 7, longest=100, seed=0) == prompts


@pytest.mark.parametrize(
    ("content", "error"),
    [("[]", ModelFileError), ("[1,", ModelFileError), ("{", ModelFileError), (None, StorageError)],
)
def test_a_bad_trace(tmp_path: Path, content: str | None, error: type[PumiceError]) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=r"trace\.json"):
        trace_prompts(path, 1, longest=1, seed=0)


def test_loads() -> None:
    assert parse_points(None, None) == [Point(concurrency=1)]
    assert parse_points("1,8", None) == [Point(concurrency=1), Point(concurrency=8)]
    assert parse_points(None, "0.5,2") == [Point(rate=0.5), Point(rate=2.0)]
    for bad in (("0", None), ("1.5", None), ("", None), (None, "-1"), (None, "nan"), ("1", "1")):
        with pytest.raises(UsageError):
            parse_points(*bad)


def test_urls() -> None:
    assert server_url("localhost:8000") == "http://localhost:8000"
    assert server_url("https://x.org/api/v1/") == "https://x.org/api"
    with pytest.raises(UsageError):
        server_url("ftp://x")
    with pytest.raises(UsageError, match="chat, completions"):
        Endpoint("http://x", kind="images")


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_the_command(tmp_path: Path) -> None:
    server = FakeServer()
    plot = tmp_path / "serve.svg"
    with server.serving() as url:
        result = run("serve", f"{url}/v1", "-c", "1,2", "-r", 4, "-n", 3, "--warmup", 1, "--json",
                     "--slo-ttft", 1e6, "--plot", plot, "--ignore-eos")  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(r["concurrency"], r["completed"], r["slo_kept"]) for r in rows] == [
        (1, 4, 1),
        (2, 4, 1),
    ]
    assert {r["model"] for r in rows} == {"fake"} and len(server.bodies) == 9
    assert server.bodies[0]["ignore_eos"] is True and server.bodies[0]["temperature"] == 0
    assert plot.read_text().startswith("<?xml")


def test_the_commands_table_shows_errors() -> None:
    with FakeServer(behaviours=["429"] * 2).serving() as url:
        result = run("serve", url, "-r", 3, "-n", 2, "--warmup", 0, "-m", "x", "--slo-tpot", 1e6)
    assert result.exit_code == 0, result.output
    assert "1 at once" in result.stdout and "33%" in result.stdout
    assert "2 × 429 the queue is full" in result.stderr
    with FakeServer(behaviours=["429"] * 2).serving() as url:
        assert run("serve", url, "-r", 2, "--warmup", 0).exit_code == 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", "0"], "--concurrency is '0'"),
        (["-c", "1", "--rate", "1"], "exclude each other"),
        (["-r", "0"], "--requests is 0"),
        (["--spread", "2"], "--spread is 2"),
        (["--endpoint", "x"], "--endpoint is 'x'"),
        (["http://127.0.0.1:9", "--threads", "2"], "--threads is for a server"),
        (["--trace", "missing.json"], "missing.json cannot be read"),
        (["--slo-tpot", "-1"], "--slo-tpot is -1 ms"),
        (["http://127.0.0.1:9"], "does not answer"),
        (["--plot", "x.gif"], "x.gif"),
        (["--temperature", "-1"], "--temperature is -1"),
    ],
)
def test_what_the_command_refuses(arguments: list[str], message: str) -> None:
    result = run("serve", *arguments)
    assert result.exit_code != 0 and message in result.stderr
    assert "Traceback" not in result.output


def test_the_model_benchmark_is_still_meant_without_a_word() -> None:
    assert "--roofline" in run("--help").output and "--slo-ttft" in run("serve", "--help").output
    assert "bench serve" in run("--help").output
    result = run("-m", "no-such-model")
    assert result.exit_code in (2, 3) and "no-such-model" in result.stderr
    assert "exclude each other" in run("x", "--random-weights", "llama-2-7b").stderr
