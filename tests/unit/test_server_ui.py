"""The page's files: what is served, under which policy, and what they must not hold."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from fastapi import FastAPI
from server_app import client

from pumice.server.ui.routes import POLICY, STATIC, make_router

FILES = sorted(path.name for path in STATIC.iterdir())


def get(path: str, **headers: str) -> httpx.Response:
    app = FastAPI()
    app.include_router(make_router())

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


def test_the_page_and_its_policy() -> None:
    answer = get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY and "http" not in POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_file_that_is_known_is_not_sent_again() -> None:
    first = get("/ui/app.js")
    assert first.headers["content-type"].startswith("text/javascript")
    again = get("/ui/app.js", **{"if-none-match": first.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    assert get("/ui/app.js", **{"if-none-match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path", ["/ui/", "/ui/index.html", "/ui/../routes.py", "/ui/%2e%2e/routes.py"]
)
def test_nothing_else_is_served(path: str) -> None:
    assert get(path).status_code == 404


def test_every_file_that_is_named_is_served() -> None:
    text = "".join((STATIC / name).read_text(encoding="utf-8") for name in FILES)
    named = {m[1] for m in re.finditer(r'"/ui/([\w.]+)"', text)}
    named |= {m[1] for m in re.finditer(r'from "\./([\w.]+)"', text)}
    assert named | {"index.html"} == set(FILES)
    for name in named:
        assert get(f"/ui/{name}").status_code == 200


@pytest.mark.parametrize("name", FILES)
def test_files_need_no_exception_from_the_policy(name: str) -> None:
    text = (STATIC / name).read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
    assert not re.search(r'(?:src|href|from|url\()\s*=?\s*["\']?(?:https?:)?//', text)
    if name.endswith(".html"):
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", text)
    assert len(text.splitlines()) <= 400


def test_the_server_tells_the_figures_that_the_page_shows() -> None:
    text = (STATIC / "live.js").read_text(encoding="utf-8")
    names = {f"pumice_engine_{m[1]}" for m in re.finditer(r'value\("(\w+)"\)', text)}
    names |= {m[1] for m in re.finditer(r'"(pumice_\w+_total)"', text)}
    names |= {f"{m[1]}_{part}" for m in re.finditer(r'"(pumice_\w+_seconds)"', text)
              for part in ("sum", "count")}  # fmt: skip
    assert len(names) == 10
    told = client("Hello.").get("/metrics").text
    assert {name for name in names if f"\n{name}{{" not in told} == set()


def test_the_server_takes_what_the_page_sends() -> None:
    source = (STATIC / "settings.js").read_text(encoding="utf-8")
    listed = re.search(r"const NUMBERS = \[(.*?)\]", source)
    assert listed is not None
    numbers = re.findall(r'"(\w+)"', listed[1])
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    assert all(f'name="{name}"' in html for name in numbers)
    body = {
        "model": "toy", "messages": [{"role": "user", "content": "Hi"}], "stop": ["###"],
        "stream": True, "stream_options": {"include_usage": True}, **dict.fromkeys(numbers, 1),
    }  # fmt: skip
    answer = client("Hello.").post("/v1/chat/completions", body)
    assert answer.status == 200, answer.text
    assert answer.data[-1]["usage"]["completion_tokens"] == 1
    [model] = client("Hello.").get("/v1/models").json["data"]
    assert model["id"] == "toy" and model["max_model_len"] > 0
