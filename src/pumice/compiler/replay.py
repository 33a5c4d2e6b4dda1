"""The loop that runs a captured plan: one function in every CPU artifact, so that a step is one call from Python.

table int64[n, 3]: a row holds the packed function's handle, the address of its arguments (TVMFFIAny[count]) and their count.
"""

from __future__ import annotations

from typing import Any

SYMBOL = "pumice_replay"


def replay_function() -> Any:
    """A PrimFunc (table, result, n, failed): failed[0] becomes the index of the first launch that returned an error."""
    from tvm.script import tirx as T

    @T.prim_func
    def replay(
        table: T.handle("int64"),
        result: T.handle("int64"),
        n: T.int32,
        failed: T.handle("int32"),
    ):  # type: ignore[no-untyped-def]
        T.func_attr({"global_symbol": "pumice_replay", "tirx.noalias": True})
        rows = T.decl_buffer((n * 3,), "int64", data=table)
        state = T.decl_buffer((1,), "int32", data=failed)
        state[0] = -1
        for i in T.serial(n):
            if state[0] < 0:
                if (
                    T.call_extern(
                        "int32",
                        "TVMFFIFunctionCall",
                        T.reinterpret("handle", rows[i * 3]),
                        T.reinterpret("handle", rows[i * 3 + 1]),
                        T.cast(rows[i * 3 + 2], "int32"),
                        result,
                    )
                    != 0
                ):
                    state[0] = i

    return replay
