"""The default model behind a server in a thread, as its clients see it.

On the CPU, unless PUMICE_TEST_ARTIFACT names the model compiled for another device, and
PUMICE_TEST_DEVICE which (`auto` by default).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pumice.engine.engine import LLMEngine
from pumice.prepare import PrepareSettings, prepare
from pumice.server.serve import Server, bind, serve
from pumice.server.settings import ServerSettings

MODEL = "smollm2-135m"
COMPILED = os.environ.get("PUMICE_TEST_ARTIFACT", "")
DEVICE = os.environ.get("PUMICE_TEST_DEVICE", "auto" if COMPILED else "cpu")
STREAMS = int(os.environ.get("PUMICE_TEST_STREAMS", "10"))  # at once, where a test has many


def artifact(file: Path, cache_dir: Path) -> Path:
    """The compiled model, from the cache when it is there."""
    if COMPILED:
        return Path(COMPILED)
    return prepare(str(file), settings=PrepareSettings(cache_dir=cache_dir, quiet=True))


@contextmanager
def served(directory: Path, *, context: int = 2048, **settings: Any) -> Iterator[tuple[str, Any]]:
    """(address, engine) of a server that ends gracefully afterwards."""
    blocks = 256 if DEVICE == "cpu" else None  # a GPU's cache takes what is free
    engine = LLMEngine.from_artifact(
        directory, device=DEVICE, context_length=context, num_blocks=blocks
    )
    sock = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    begun = threading.Event()
    servers: list[Server] = []

    def started(server: Server) -> None:
        servers.append(server)
        begun.set()

    values = {"names": (MODEL,), "access_log": False, "drain_timeout": 10.0, **settings}
    info = {"architecture": "llama", "parameters": 134_515_008}
    thread = threading.Thread(
        target=lambda: asyncio.run(
            serve(engine, ServerSettings(**values), sock, model_info=info, on_start=started)
        )
    )
    thread.start()
    assert begun.wait(60)
    try:
        yield url, engine
    finally:
        servers[0].should_exit = True
        thread.join(60)
    assert not thread.is_alive()
    assert engine.audit() == [] and not engine.has_work
