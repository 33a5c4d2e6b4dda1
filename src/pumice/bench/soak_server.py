"""The server under test: a process of its own, and what can be seen of it."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from pumice.bench.soak_http import exchange
from pumice.errors import DeviceError

_CODE = (
    "from pumice.bench.soak_probe import start; start(); "
    "import sys; sys.argv[0] = 'pumice'; from pumice.cli.main import main; sys.exit(main())"
)
_ADDRESS = re.compile(r" at http://127\.0\.0\.1:(\d+)")
_LOADING = 1800.0  # seconds: the first run downloads and compiles
_ENDING = 60.0
_SAMPLE = re.compile(r"^pumice_engine_(\w+?)(?:_total)?(?:\{.*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class State:
    """What the process holds, and what its engine tells in /metrics."""

    tasks: int
    threads: int
    descriptors: int
    rss_bytes: int
    engine: Mapping[str, float]

    @property
    def idle(self) -> bool:
        return self.engine["running"] == 0 == self.engine["waiting"]


class SoakServer:
    """A running `pumice serve`. port: of the loopback. log: what it said."""

    def __init__(self, process: subprocess.Popen[str], port: int, log: list[str]) -> None:
        self.process = process
        self.port = port
        self.log = log
        self.status: int | None = None

    async def state(self) -> State:
        """DeviceError when the server does not answer."""
        try:
            known = json.loads(await asyncio.to_thread(self._probe))
            answer = await exchange(self.port, "GET", "/metrics")
        except (OSError, ValueError) as error:
            raise DeviceError(f"the server is gone: {error}") from None
        engine = {m[1]: float(m[2]) for m in _SAMPLE.finditer(answer.text)}
        return State(**known, engine=engine)

    def _probe(self) -> str:
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline()

    def end(self) -> None:
        """Tells it to end and waits; `status` is its exit status, or None when it had to be
        killed.
        """
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.status = self.process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def running(arguments: Sequence[str]) -> Iterator[SoakServer]:
    """Starts the server with arguments of `pumice serve`; ends it in any case."""
    command = [sys.executable, "-c", _CODE, "serve", *arguments, "--host", "127.0.0.1",
               "--port", "0", "--quiet"]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdin and process.stdout and process.stderr
    log: list[str] = []
    known = threading.Event()
    reader = threading.Thread(target=_read, args=(process.stderr, log, known), daemon=True)
    reader.start()
    try:
        port = _port(process, log, known)
        server = SoakServer(process, port, log)
        yield server
        server.end()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        reader.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()


def _port(process: subprocess.Popen[str], log: list[str], known: threading.Event) -> int:
    deadline = time.monotonic() + _LOADING
    while not known.wait(0.1):
        if time.monotonic() > deadline:
            break
    for line in log:
        if found := _ADDRESS.search(line):
            return int(found[1])
    raise DeviceError("the server did not start:\n" + "".join(log[-20:]))


def _read(stream: IO[str], log: list[str], known: threading.Event) -> None:
    for line in stream:
        log.append(line)
        if _ADDRESS.search(line):
            known.set()
    known.set()
