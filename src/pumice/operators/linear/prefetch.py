"""Asks for memory ahead of use.

A processor's own prefetchers stop at page borders and see a stream only after a few lines; with
many instructions a byte the reorder window alone holds too few lines in flight to reach full
bandwidth.
"""

from __future__ import annotations

from typing import Any

import tvm.tirx as tir
from tvm.tirx.script.builder import ir as T

from pumice.dtypes import itemsize

LINE = 64  # bytes of a cache line


def prefetch(buffer: Any, index: Any, nbytes: int) -> None:
    """Starts loading the lines of `nbytes` from buffer[index] on; past the end it is harmless."""
    step = LINE // itemsize(str(buffer.dtype))
    for line in range(-(-nbytes // LINE)):
        address = T.address_of(buffer[index + line * step])
        read, keep, data = (tir.const(v, "int32") for v in (0, 3, 1))
        T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch", address, read, keep, data))
