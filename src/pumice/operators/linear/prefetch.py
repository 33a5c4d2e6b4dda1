"""Asks for memory ahead of use.

A processor's own prefetchers stop at page borders and see a stream only after a few lines; with
many instructions a byte the reorder window alone holds too few lines in flight to reach full
bandwidth. Lines go to the second cache level: the first one's fill buffers (some 24 on Zen) times
the latency of memory would bound a core to about half of what it can read.
"""

from __future__ import annotations

from typing import Any

import tvm.tirx as tir
from tvm.tirx.script.builder import ir as T

from pumice.dtypes import itemsize

LINE = 64  # bytes of a cache line
LEVEL_1, LEVEL_2 = 3, 2  # LLVM's locality: 3 is every level, 0 none


def prefetch(
    buffer: Any, index: Any, nbytes: int, *, level: int = LEVEL_2, write: bool = False
) -> None:
    """Starts loading the lines of `nbytes` from buffer[index] on, to be read or written; past the
    end it is harmless."""
    step = LINE // itemsize(str(buffer.dtype))
    for line in range(-(-nbytes // LINE)):
        address = T.address_of(buffer[index + line * step])
        mode, keep, data = (tir.const(v, "int32") for v in (int(write), level, 1))
        T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch", address, mode, keep, data))
