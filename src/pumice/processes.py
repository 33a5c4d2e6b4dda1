"""Processes that end with the one that started them, in whatever way that ended."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with(parent: int) -> bool:
    """Has the kernel send this process SIGTERM when its parent is gone, killed for instance.

    Returns whether process `parent` is still the parent: it may have gone before.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    return os.getppid() == parent


def start_worker(parent: int) -> None:
    """Initializer of a pool's processes, which else wait for a killed parent's tasks for ever. An
    interrupt from the terminal is the parent's matter."""
    if not end_with(parent):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class _Pool(ProcessPoolExecutor):
    """Its processes begin when tasks are given, with interrupts blocked: one that falls into a
    process's first moments would be a traceback of Python's own."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def worker_pool(workers: int, method: str = "spawn") -> Iterator[ProcessPoolExecutor]:
    """A pool of fresh processes, for a parent with threads that a fork would tear; of forks
    (method) where what the parent has loaded must be there. When its block is left by an exception,
    an interrupt among them, they are ended whatever they do."""
    pool = _Pool(
        workers, multiprocessing.get_context(method),
        initializer=start_worker, initargs=(os.getpid(),),
    )  # fmt: skip
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
