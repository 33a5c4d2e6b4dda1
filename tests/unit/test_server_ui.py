"""The page's files: what is served, under which policy, and what they must not hold."""

from __future__ import annotations

import asyncio
import re

import httpx
import pytest
from fastapi import FastAPI

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
