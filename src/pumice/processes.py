"""Processes that end with the one that started them, in whatever way that ended."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def end_with(parent: int) -> bool:
    """Has the kernel send this process SIGTERM when its parent is gone, killed for instance.

    Returns whether process `parent` is still the parent: it may have gone before.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    return os.getppid() == parent


def start_worker(parent: int) -> None:
    """Initializer of a pool's processes, which else wait for a killed parent's tasks for ever."""
    if not end_with(parent):
        os._exit(1)
