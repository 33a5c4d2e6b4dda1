"""The end of a matmul tile: bias, residual, and a store that respects the last row block."""

from __future__ import annotations

from typing import Any

from pumice.operators.tir.builder import when
from pumice.operators.tir.vector import let, load, pick, store


def store_rows(
    k: Any, value: Any, token: Any, block: Any, rows: int, bias: bool, residual: bool
) -> None:
    """out[token, block·rows : +rows] = value (+ bias) (+ residual), for rows below N only."""
    n = k["N"]
    first = let(block * rows)
    where = let(token * n + first)
    named = let(value)
    with when(first + rows <= n):
        total = named
        if bias:
            total = total + load(k["bias"], first, rows)
        if residual:
            total = total + load(k["residual"], where, rows)
        store(k["out"], where, total, rows)
    with when(first + rows > n):
        for lane in range(rows - 1):  # the last lane is never below N here
            with when(first + lane < n):
                total = pick(named, [lane])
                if bias:
                    total = total + k["bias"][first + lane]
                if residual:
                    total = total + k["residual"][where + lane]
                store(k["out"], where + lane, total, 1)
