"""In the server's process: answers what only it knows. Loaded there by `soak_server`.

A thread reads lines from standard input and writes a line of JSON to standard output for each:
{"tasks": asyncio's tasks that are not done, "threads", "descriptors", "rss_bytes"}.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import sys
import threading
from pathlib import Path


def start() -> None:
    """Begins to answer."""
    threading.Thread(target=_answer, name="probe", daemon=True).start()


def _answer() -> None:
    for _ in sys.stdin:
        print(json.dumps(_state()), flush=True)


def _state() -> dict[str, int]:
    gc.collect()
    _give_back()
    tasks = [item for item in gc.get_objects() if isinstance(item, asyncio.Task)]
    status = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in status if ":" in line)
    return {
        "tasks": sum(not task.done() for task in tasks),
        "threads": int(values["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")) - 1,  # one reads the directory
        "rss_bytes": int(values["VmRSS"].split()[0]) * 1024,
    }


def _give_back() -> None:
    """Free memory that the C library keeps is no leak: it is given back before it is counted."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
