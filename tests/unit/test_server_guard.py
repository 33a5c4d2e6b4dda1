"""Who may call: keys on every route, pages of other origins, names that lead here, and bodies."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from server_app import USER, client

from pumice.errors import UsageError
from pumice.server.app import create_app
from pumice.server.settings import ServerSettings

CHAT = "/v1/chat/completions"
KEY = "a-key-of-the-test"
BODY = {"messages": USER, "max_tokens": 2}


def routes(server: Any) -> list[tuple[str, str]]:
    """Every (method, path) that the application has."""
    found: list[tuple[str, str]] = []

    async def work(_: Any, context: Any) -> None:
        for path, methods in create_app(context).openapi()["paths"].items():
            found.extend((m.upper(), path.replace("{", "").replace("}", "")) for m in methods)

    server.run(work)
    return found


def test_every_route_but_health_asks_for_the_key() -> None:
    server = client("ok", api_keys=(KEY,))
    every = routes(server)
    assert len(every) > 20 and ("POST", CHAT) in every and ("GET", "/metrics") in every
    pages = [("GET", "/"), ("HEAD", "/"), ("GET", "/ui/app.js")]
    asked = [*every, *pages, ("GET", "/nowhere"), ("GET", "/openapi.json"), ("OPTIONS", CHAT)]
    answers = server.ask(*((m, p, {}) for m, p in asked))
    for (method, path), answer in zip(asked, answers, strict=True):
        assert (answer.status == 200) == (path == "/health"), (method, path, answer.status)
        if path != "/health" and method != "HEAD":
            assert answer.status == 401, (method, path)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": "Bearer another-of-the-keys"}, 200),
        ({"x-api-key": KEY}, 200),
        ({"authorization": "Basic " + base64.b64encode(f"me:{KEY}".encode()).decode()}, 200),
        ({}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": f"Bearer {KEY}x"}, 401),
        ({"authorization": f"Bearer {KEY[:-1]}"}, 401),
        ({"authorization": KEY}, 401),
        ({"authorization": "Basic !!!"}, 401),
        ({"x-api-key": ""}, 401),
    ],
)
def test_keys(headers: dict[str, str], status: int) -> None:
    server = client("ok", api_keys=(KEY, "another-of-the-keys"))
    answer = server.post(CHAT, BODY, headers=headers)
    assert answer.status == status
    if status == 401:
        assert answer.error["code"] == "invalid_api_key" and KEY not in answer.text
        assert answer.headers["www-authenticate"] == "Bearer"


def test_a_browser_is_asked_for_the_key() -> None:
    answer = client(api_keys=(KEY,)).get("/", headers={"accept": "text/html"})
    assert answer.status == 401 and answer.headers["www-authenticate"].startswith("Basic")


@pytest.mark.parametrize("key", ["short", "with space in", "ümlaut-key", "tab\there-it-is"])
def test_unfit_keys(key: str) -> None:
    with pytest.raises(UsageError) as caught:
        ServerSettings(api_keys=(key,))
    assert key not in str(caught.value)


def test_the_prefix_cache_is_shared_by_one_key_only() -> None:
    keys = (KEY, "another-of-the-keys")
    server = client("ok", api_keys=keys)
    body = {"messages": [{"role": "user", "content": "fox " * 40}]}
    requests = [("POST", CHAT, {"json": body, "headers": {"x-api-key": k}})
                for k in (keys[0], keys[0], keys[1])]  # fmt: skip
    cached = [a.json["usage"]["prompt_tokens_details"]["cached_tokens"]
              for a in server.ask(*requests)]  # fmt: skip
    assert cached[0] == 0 and cached[1] > 10 and cached[2] == 0


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200), ("127.0.0.1:8000", 200), ("[::1]:8000", 200), ("10.1.2.3", 200),
        ("my.name", 200), ("evil.example:8000", 403), ("localhost.evil.example", 403),
    ],
)  # fmt: skip
def test_names_that_lead_here(host: str, status: int) -> None:
    answer = client("ok", hosts=("my.name",)).post(CHAT, BODY, headers={"host": host})
    assert answer.status == status


def test_a_key_is_enough_under_any_name() -> None:
    headers = {"host": "evil.example", "x-api-key": KEY}
    assert client("ok", api_keys=(KEY,)).post(CHAT, BODY, headers=headers).status == 200


@pytest.mark.parametrize(
    ("origin", "allowed", "status"),
    [
        ("http://localhost", (), 200),
        ("https://page.example", (), 403),
        ("null", (), 403),
        ("https://page.example", ("https://page.example",), 200),
        ("https://other.example", ("https://page.example",), 403),
        ("https://other.example", ("*",), 200),
    ],
)
def test_pages_of_other_origins(origin: str, allowed: tuple[str, ...], status: int) -> None:
    server = client("ok", cors_origins=allowed)
    answer = server.post(CHAT, BODY, headers={"origin": origin})
    assert answer.status == status
    named = answer.headers.get("access-control-allow-origin")
    assert named == (("*" if "*" in allowed else origin) if status == 200 and allowed else None)


def test_bodies_have_a_limit() -> None:
    server = client("ok", max_body=1000)
    large = {"messages": [{"role": "user", "content": "x" * 1000}]}
    assert server.post(CHAT, large).status == 413

    async def parts() -> Any:
        for _ in range(20):
            yield b"x" * 100

    answer = server.ask(("POST", CHAT, {"content": parts()}))[0]  # its size is not told
    assert answer.status == 413 and "1,000" in answer.error["message"]


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def drip() -> Any:
        yield b"{"
        await asyncio.sleep(30)

    answer = client("ok", body_timeout=0.1).ask(("POST", CHAT, {"content": drip()}))[0]
    assert answer.status == 408 and answer.headers["connection"] == "close"


def test_prompts_have_a_limit() -> None:
    server = client("ok", max_prompt_chars=100)
    message = {"role": "user", "content": "x" * 101}
    assert server.post(CHAT, {"messages": [message]}).status == 400
    assert server.post("/v1/completions", {"prompt": "x" * 101}).status == 400
    assert server.post("/tokenize", {"prompt": "x" * 101}).status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"3", b"null", b'"x"', b"{}", b"\xff\xfe", b'{"messages": NaN}',
        b'{"temperature": 1e999, "messages": [{"role": "user", "content": "a"}]}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"a": ' * 100 + b"1" + b"}" * 100,
        b"[" * 100_000,
        b'{"messages": ' + b"[" * 70 + b"]" * 70 + b"}",
        b"\x00" * 100,
    ],
)  # fmt: skip
def test_bodies_that_are_no_request(body: bytes) -> None:
    answer = client("ok").post(CHAT, body)
    assert answer.status == 400, answer.text
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.text and "/" not in answer.error["message"]


def test_a_body_is_json_whatever_it_is_called() -> None:
    server = client("ok")
    for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json"):
        body = json.dumps(BODY).encode()
        assert server.post(CHAT, body, headers={"content-type": kind}).status == 200


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/nothing", lambda e: e["error"]["type"] == "invalid_request_error"),
        ("/v1/messages/nothing", lambda e: e["type"] == "error" and e["error"]["type"]),
        ("/api/nothing", lambda e: isinstance(e["error"], str)),
    ],
)
def test_errors_have_their_protocols_shape(path: str, shape: Any) -> None:
    answer = client().get(path)
    assert answer.status == 404 and shape(answer.json)
    assert client().post("/health", {}).status == 405
