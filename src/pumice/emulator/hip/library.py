"""The stand-in for libamdhip64 on an emulated card.

It differs from a real driver in what a program may not rely on: kernels run when their stream is
waited for, one after another. Failures that a status cannot tell (which address, which kernel) are
kept for `explain`. After a fault in a stream the device is lost, as with AMD's driver: every later
call that waits returns that status.
"""

from __future__ import annotations

from pumice.emulator.hip.cards import card
from pumice.emulator.hip.kernel_calls import KernelCalls


class HipLibrary(KernelCalls):
    """C functions as attributes, like those of a library opened by ctypes.CDLL."""


def open_library(arch: str, *, sanitize: bool = False) -> HipLibrary:
    """The stand-in for a card of an architecture, with the emulator beneath. sanitize: races, reads
    of LDS before writes and NaN out of numbers are faults too; out-of-bounds accesses always are.
    UnsupportedError where the package is missing that knows AMD's instructions.
    """
    from pumice.emulator.encodings import tables
    from pumice.emulator.hip.machine import Machine

    chosen = card(arch)
    tables()  # said here once, and not by every launch
    return HipLibrary(chosen, Machine(chosen, sanitize=sanitize))
