"""The softmax of a tile of scores, online (Milakov and Gimelshein, arXiv:1805.02867), in base 2."""

from __future__ import annotations

from typing import Any

import tvm.tirx as tir
from tvm.tirx.script.builder import ir as T

from pumice.operators.attention.problem import UNIT, Problem
from pumice.operators.tir.math import exp2, tanh
from pumice.operators.tir.vector import (
    horizontal_max,
    let,
    load,
    pick,
    splat,
    store,
)

# A hidden score is far below the running maximum's start, so that exp2 of their difference is 0 even before any key was seen.
HIDDEN = -3e38
NOTHING = -1e30


def mask(scores: Any, row: Any, unit: Any, low: Any, high: Any) -> None:
    """Hides the columns of one unit that are not in [low, high), as columns of the tile."""
    column = T.ramp(unit * UNIT, 1, UNIT)
    where = row + unit * UNIT
    value = load(scores, where, UNIT)
    hidden = splat(HIDDEN, UNIT)
    if high is not None:
        value = tir.Select(column < T.broadcast(high, UNIT), value, hidden)
    if low is not None:
        value = tir.Select(column >= T.broadcast(low, UNIT), value, hidden)
    store(scores, where, value, UNIT)


def softmax_row(
    p: Problem,
    scores: Any,
    row: Any,
    units: Any,
    low: Any,
    high: Any,
    state: RowState,
    r: Any,
) -> None:
    """Scores of one row become probabilities relative to its running maximum, which is brought up to date.

    scores[row …] holds `units`·32 scores. Columns visible: low ≤ column < high (None: all). state.alpha[r] is set to the factor that
    what was summed up before must be multiplied by.
    """
    if p.softcap:
        with T.serial(0, units) as u:
            where = row + u * UNIT
            x = let(load(scores, where, UNIT) * splat(1.0 / p.softcap, UNIT))
            store(scores, where, tanh(x, UNIT) * splat(p.softcap * 1.4426950408889634, UNIT), UNIT)
    if high is not None:
        first = let(T.min(T.max(high, 0) // UNIT, units))
        with T.serial(0, units - first) as u:
            mask(scores, row, first + u, None, high)
    if low is not None:
        count = let(T.min(T.max(low + (UNIT - 1), 0) // UNIT, units))
        with T.serial(0, count) as u:
            mask(scores, row, u, low, None)
    top = T.alloc_buffer((UNIT,), "float32")
    store(top, 0, load(scores, row, UNIT), UNIT)
    with T.serial(0, units - 1) as u:
        store(top, 0, T.max(load(top, 0, UNIT), load(scores, row + (u + 1) * UNIT, UNIT)), UNIT)
    before = let(state.top[r])
    now = let(T.max(before, horizontal_max(load(top, 0, UNIT), UNIT)))
    alpha = let(exp2(before - now, 1))
    T.buffer_store(state.top, now, [r])
    T.buffer_store(state.alpha, alpha, [r])
    total = T.alloc_buffer((UNIT,), "float32")
    store(total, 0, splat(0.0, UNIT), UNIT)
    with T.serial(0, units) as u:
        where = row + u * UNIT
        e = exp2(load(scores, where, UNIT) - splat(now, UNIT), UNIT)
        store(scores, where, e, UNIT)
        store(total, 0, load(total, 0, UNIT) + e, UNIT)
    # Lanes are added up at the very end only.
    part, width = load(total, 0, UNIT), UNIT
    while width > p.lanes:
        width //= 2
        part = let(pick(part, list(range(width))) + pick(part, list(range(width, 2 * width))))
    where = r * p.lanes
    store(
        state.total, where, T.fma(load(state.total, where, p.lanes), splat(alpha, p.lanes), part),
        p.lanes,
    )  # fmt: skip


class RowState:
    """Running maximum, sum (a vector a row) and last rescaling factor of each row of a tile."""

    def __init__(self, p: Problem, rows: int) -> None:
        self.top = T.alloc_buffer((rows,), "float32")
        self.alpha = T.alloc_buffer((rows,), "float32")
        self.total = T.alloc_buffer((rows * p.lanes,), "float32")
        with T.serial(0, rows) as r:
            T.buffer_store(self.top, T.float32(NOTHING), [r])
            store(self.total, r * p.lanes, splat(0.0, p.lanes), p.lanes)
