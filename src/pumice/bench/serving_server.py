"""A server of our own for a benchmark, in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from pumice.errors import DeviceError

_LOADING = 1800.0  # seconds: the first run downloads and compiles
_ENDING = 30.0
_ADDRESS = re.compile(r" at (http://\S+)")


@contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[str]:
    """Runs `pumice serve` with arguments at a free port of the loopback; yields its URL. Ends it
    in any case. What it says goes to standard error.
    """
    command = [sys.executable, "-m", "pumice", "serve", *arguments, "--host", "127.0.0.1",
               "--port", "0", "--quiet"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stderr is not None
    told = _Told()
    reader = threading.Thread(target=told.read, args=(process.stderr,), daemon=True)
    reader.start()
    try:
        told.known.wait(_LOADING)
        if told.url is None:
            status = process.poll()
            raise DeviceError(
                "the server did not start" + ("" if status is None else f": exit status {status}")
            )
        yield told.url
    finally:
        process.terminate()
        try:
            process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reader.join()
        process.stderr.close()


class _Told:
    """What the server says: passed on until it tells its address, then only read."""

    def __init__(self) -> None:
        self.known = threading.Event()
        self.url: str | None = None

    def read(self, stream: IO[str]) -> None:
        for line in stream:
            found = _ADDRESS.search(line)
            if self.url is None:
                sys.stderr.write(line)
                sys.stderr.flush()
            if found and self.url is None:
                self.url = found[1]
                self.known.set()
        self.known.set()
