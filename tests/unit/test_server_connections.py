"""A real socket: clients that leave, dawdle, send too much or do not read, and the server's end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import engine_toy
import httpx
import pytest
from server_app import USER, make_engine

from pumice.engine.engine import LLMEngine
from pumice.errors import UsageError
from pumice.server.serve import Server, bind, serve
from pumice.server.settings import ServerSettings

CHAT = "/v1/chat/completions"


class Live:
    """A server in a thread. url: where. engine: its engine."""

    def __init__(self, engine: LLMEngine, settings: ServerSettings) -> None:
        self.engine = engine
        self._sock = bind("127.0.0.1", 0)
        self.address = self._sock.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self._server: Server | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(settings,))
        self._thread.start()
        assert self._begun.wait(30)

    def _run(self, settings: ServerSettings) -> None:
        def started(server: Server) -> None:
            self._server = server
            self._begun.set()

        asyncio.run(serve(self.engine, settings, self._sock, on_start=started))

    def tell_to_end(self) -> None:
        assert self._server is not None
        self._server.should_exit = True

    def end_at_once(self) -> None:
        """What a second Ctrl-C does."""
        assert self._server is not None
        self._server.force_exit = True

    def end(self) -> None:
        self.tell_to_end()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def until(self, what: Callable[[], bool], seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not what():
            assert time.monotonic() < end, "it did not come to that"
            time.sleep(0.01)


@contextmanager
def live(engine: LLMEngine | None = None, **settings: Any) -> Iterator[Live]:
    """A server that is over, with nothing left of its requests, afterwards."""
    values = {"names": ("toy",), "access_log": False, "drain_timeout": 5.0, **settings}
    server = Live(engine or make_engine("the quick fox"), ServerSettings(**values))
    try:
        yield server
    finally:
        server.end()
    engine_toy.assert_idle(server.engine)


def slow_engine(seconds: float = 0.02) -> LLMEngine:
    """One that says the same for ever, a token a while."""
    engine = make_engine("the fox ", then_end=False, context_length=2000, num_blocks=4000)
    engine.executable.before = lambda _: time.sleep(seconds)  # type: ignore[attr-defined]
    return engine


def request_bytes(body: Any, path: str = CHAT) -> bytes:
    data = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n"
    ).encode() + data


def connect(server: Live) -> socket.socket:
    return socket.create_connection(server.address, timeout=20)


SEVERAL = ("/v1/completions", {"prompt": ["the", "fox", "dog"], "n": 2, "max_tokens": 1500})
ASKED = [(CHAT, {"messages": USER}), ("/v1/responses", {"input": "the"}), SEVERAL]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(("path", "body"), ASKED, ids=["chat", "responses", "completions"])
def test_a_client_that_leaves_frees_its_request(
    path: str, body: dict[str, Any], stream: bool, how: str
) -> None:
    with live(slow_engine()) as server:
        client = connect(server)
        client.sendall(request_bytes({**body, "stream": stream}, path))
        if stream:
            assert b"200 OK" in client.recv(4096)
        server.until(lambda: server.engine.has_work)
        if how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        client.close()
        server.until(lambda: not server.engine.has_work)
        assert len(server.engine.executable.steps) < 500  # type: ignore[attr-defined]
        assert httpx.get(server.url + "/health").status_code == 200


def test_a_client_that_leaves_the_queue_leaves_nothing() -> None:
    engine = slow_engine()
    engine.scheduler._max_running = 1
    with live(engine) as server:
        clients = [connect(server) for _ in range(4)]
        for client in clients:
            client.sendall(request_bytes({"messages": USER}))
        server.until(lambda: len(engine.alive) == 4)
        for client in clients:
            client.close()
        server.until(lambda: not engine.has_work)


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nX-A: b\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(sent: bytes) -> None:
    with live(header_timeout=0.3) as server:
        client = connect(server)
        client.sendall(sent)
        assert client.recv(100) == b""
        client.close()


def test_a_head_that_drips_in_is_not_waited_for() -> None:
    with live(header_timeout=0.4) as server:
        client = connect(server)
        client.sendall(b"GET /health HTTP/1.1\r\n")
        begun = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() < begun + 20:
                client.sendall(b"X-A: b\r\n")
                time.sleep(0.05)
        client.close()


def test_a_head_without_an_end_is_refused() -> None:
    with live() as server:
        client = connect(server)
        client.sendall(b"GET /health HTTP/1.1\r\n")
        try:
            for i in range(4000):
                client.sendall(b"X-%d: %s\r\n" % (i, b"a" * 100))
        except OSError:  # it was closed meanwhile
            pass
        with contextlib.suppress(ConnectionResetError):
            answer = client.recv(1000)
            assert answer.startswith(b"HTTP/1.1 400 ") and b"too large" in answer
        client.close()
        assert httpx.get(server.url + "/health").status_code == 200


def test_a_connection_serves_several_requests() -> None:
    with live(header_timeout=0.3) as server, httpx.Client(base_url=server.url) as client:
        for pause in (0, 0.1, 0.5):
            time.sleep(pause)
            answer = client.post(CHAT, json={"messages": USER})
            assert answer.json()["choices"][0]["message"]["content"] == "the quick fox"


def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    with live(max_body=1 << 20) as server:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n"
        with connect(server) as client:
            client.sendall(head.encode())
            assert b"413" in client.recv(4096).split(b"\r\n")[0]
        whole = httpx.post(server.url + CHAT, content=b"x" * (8 << 20), timeout=60)
        assert whole.status_code == 413 and "1,048,576" in whole.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, {"messages": USER, "n": 8, "logprobs": True, "top_logprobs": 20}),
                       (SEVERAL[0], {**SEVERAL[1], "n": 3, "logprobs": 20})],
)  # fmt: skip
def test_a_reader_who_does_not_read_is_not_waited_for(path: str, body: dict[str, Any]) -> None:
    engine = make_engine("fox " * 50, then_end=False, context_length=4000, num_blocks=4000)
    with live(engine, write_timeout=0.5, header_timeout=0.5) as server:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.connect(server.address)
        client.sendall(request_bytes({**body, "stream": True}, path))
        server.until(lambda: engine.has_work)
        server.until(lambda: not engine.has_work, 60)
        client.close()


def test_the_end_waits_for_what_runs() -> None:
    with live(slow_engine()) as server:
        answers: list[httpx.Response] = []

        def ask() -> None:
            body = {"messages": USER, "max_tokens": 30}
            answers.append(httpx.post(server.url + CHAT, json=body, timeout=60))

        asking = threading.Thread(target=ask)
        asking.start()
        server.until(lambda: server.engine.has_work)
        server.tell_to_end()
        asking.join(60)
        assert answers[0].status_code == 200
        assert answers[0].json()["usage"]["completion_tokens"] == 30


@pytest.mark.parametrize("stream", [True, False])
def test_the_end_tells_what_it_cuts_off(stream: bool) -> None:
    with live(slow_engine(), drain_timeout=0.3) as server:
        answers: list[httpx.Response] = []

        def ask() -> None:
            body = {"messages": USER, "stream": stream}
            answers.append(httpx.post(server.url + CHAT, json=body, timeout=60))

        asking = threading.Thread(target=ask)
        asking.start()
        server.until(lambda: server.engine.has_work)
        time.sleep(0.1)
        server.tell_to_end()
        asking.join(60)
        text = answers[0].text
        assert "shutting_down" in text
        assert answers[0].status_code == (200 if stream else 503)
        assert text.endswith("data: [DONE]\n\n") == stream


def test_a_second_wish_to_end_is_not_waited_for() -> None:
    with live(slow_engine(), drain_timeout=100.0) as server, connect(server) as client:
        client.sendall(request_bytes({"messages": USER, "stream": True}))
        assert b"200 OK" in client.recv(4096)
        server.tell_to_end()
        time.sleep(0.2)
        server.end_at_once()


def test_a_stream_without_news_shows_that_it_lives() -> None:
    engine = make_engine("the quick fox")
    engine.executable.before = lambda step: time.sleep(0.8 if step == 3 else 0)  # type: ignore[attr-defined]
    with live(engine, ping=0.1, early_error=0.05) as server:
        text = httpx.post(server.url + CHAT, json={"messages": USER, "stream": True}).text
        assert ": waiting\n\n" in text and text.endswith("data: [DONE]\n\n")


def test_a_port_in_use() -> None:
    taken = bind("127.0.0.1", 0)
    with pytest.raises(UsageError, match="in use"):
        bind("127.0.0.1", taken.getsockname()[1])
    taken.close()


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 1), ("127.0.0.1", 70000),
                                            ("192.0.2.1", 0), ("127.0.0.1", -1)])  # fmt: skip
def test_addresses_that_cannot_be_used(host: str, port: int) -> None:
    with pytest.raises(UsageError):
        bind(host, port)
