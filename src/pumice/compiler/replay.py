"""The loop that runs a captured plan: one function in every CPU artifact, so that a step is one
call from Python.

table int64[n, 3]: a row holds the packed function's handle, the address of its arguments
(TVMFFIAny[count]) and their count.
"""

from __future__ import annotations

from typing import Any

SYMBOL = "pumice_replay"


def replay_function() -> Any:
    """A PrimFunc (table, result, n, failed): failed[0] becomes the index of the first launch that
    returned an error."""
    from tvm.tirx.script.builder import ir as T

    from pumice.operators.tir.builder import SIZE, kernel, when

    parameters = {"table": "int64", "result": "int64", "n": SIZE, "failed": "int32"}
    with kernel(SYMBOL, parameters) as k:
        rows, state = k["table"], k["failed"]
        T.buffer_store(state, T.int32(-1), [0])
        with T.serial(0, k["n"]) as i:
            with when(state[0] < 0):
                status = T.call_extern(
                    "int32",
                    "TVMFFIFunctionCall",
                    T.reinterpret("handle", rows[i * 3]),
                    T.reinterpret("handle", rows[i * 3 + 1]),
                    T.cast(rows[i * 3 + 2], "int32"),
                    T.address_of(k["result"][0]),
                )
                with when(status != 0):
                    T.buffer_store(state, i, [0])
    return k.function
