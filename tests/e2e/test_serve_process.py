"""`pumice serve` as a process: what it prints, how it ends, and what it leaves."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx
import pytest
from tests.e2e.serving import DEVICE, artifact

ASK = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def model(smollm2_gguf: Path, cache_dir: Path) -> str:
    return str(artifact(smollm2_gguf, cache_dir))


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pumice", "serve", *arguments]


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"}


@contextmanager
def process(model: str, *arguments: str, stderr: int | IO[bytes] = subprocess.PIPE) -> Iterator[
    tuple[subprocess.Popen[bytes], str]
]:  # fmt: skip
    """(the process, where it listens); killed if it is still there afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = subprocess.Popen(
        command(model, "--port", str(port), "--context", "1024", "--device", DEVICE, *arguments),
        env=environment(), stderr=stderr, stdout=subprocess.PIPE,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + 60
        while True:
            assert run.poll() is None and time.monotonic() < end, run.communicate()
            try:
                if httpx.get(f"{url}/health").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield run, url
    finally:
        if run.poll() is None:
            run.kill()
        run.communicate()


def test_what_it_prints_and_how_it_ends(model: str) -> None:
    with process(model, "--name", "toy", "--drain-timeout", "5") as (run, url):
        answer = httpx.post(f"{url}/v1/chat/completions", json=ASK, timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == "The capital of France is Paris."
        assert answer["model"] == "toy"
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=30)
        assert run.returncode == 0 and out == b""
        text = err.decode()
        assert f"toy at {url}" in text and f"curl {url}/v1/chat/completions" in text
        line = r"\d\d:\d\d:\d\d 127.0.0.1 POST /v1/chat/completions 200 .* s 37\+8 tokens"
        assert re.search(line, text)
        assert "Traceback" not in text and "ending" in text


def test_ctrl_c_ends_it(model: str) -> None:
    with process(model, "--quiet") as (run, url):
        httpx.get(f"{url}/v1/models")
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=30)
        assert run.returncode == 130 and b"Traceback" not in err and b"GET" not in err


def test_after_a_kill_there_is_nothing_to_repair(model: str) -> None:
    for _ in range(2):
        with process(model) as (run, url):
            body = {**ASK, "stream": True, "ignore_eos": True}
            path = f"{url}/v1/chat/completions"
            with httpx.stream("POST", path, json=body, timeout=60) as answer:
                lines = answer.iter_lines()
                next(lines)
                run.kill()
                with pytest.raises(httpx.TransportError):
                    list(lines)
            run.communicate()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_under_the_log_costs_no_request(model: str) -> None:
    with open("/dev/full", "wb") as full, process(model, stderr=full) as (run, url):
        for _ in range(3):
            assert httpx.post(f"{url}/v1/chat/completions", json=ASK, timeout=60).status_code == 200
        run.send_signal(signal.SIGTERM)
        assert run.wait(30) == 0


def run_to_its_end(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        command(*arguments), env=environment(), capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stderr


def test_a_port_in_use_is_one_line_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        status, text = run_to_its_end("no-such-model", "--port", port)
    assert status == 2
    assert text.splitlines() == [
        f"error: port {port} of 127.0.0.1 is in use", "hint: --port 0 takes a free one."
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "status", "word"),
    [
        (["--api-key", "short"], 2, "API key"),
        (["--api-key-file", "/no/such/file"], 7, "cannot be read"),
        (["--host", "no.such.host.invalid"], 2, "no address"),
        (["--port", "99999"], 2, "99999"),
        (["--cache-tokens", "0"], 2, "--cache-tokens"),
        (["--max-waiting", "-1"], 2, "--max-waiting"),
        (["--speculate", "maybe"], 2, "maybe"),
        (["--port", "0", "no-such-model"], 2, "no-such-model"),
    ],
)
def test_wrong_options(arguments: list[str], status: int, word: str) -> None:
    code, text = run_to_its_end(*arguments)
    assert code == status and word in text and "Traceback" not in text, text


def test_a_cache_that_nothing_fits_in_is_refused(model: str) -> None:
    status, text = run_to_its_end(model, "--port", "0", "--cache-tokens", "1")
    assert status == 2 and "--cache-tokens is 1; " in text and "at least 64" in text


def test_a_cache_that_no_memory_holds_is_refused(model: str) -> None:
    status, text = run_to_its_end(model, "--port", "0", "--cache-tokens", str(10**15))
    assert status == 6 and re.search(r"hint: A cache of [\d,]+ tokens fits: serve --cache", text)
