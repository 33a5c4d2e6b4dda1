"""The softmax of a tile of scores, online (Milakov and Gimelshein, arXiv:1805.02867), in base 2."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tvm.tirx as tir
from tvm.tirx.script.builder import ir as T

from pumice.operators.attention.problem import UNIT, Problem
from pumice.operators.tir.math import exp2, tanh
from pumice.operators.tir.vector import horizontal_max, let, load, pick, splat, store

# A hidden score is far below the running maximum's start, so that exp2 of their difference is 0
# even before any key was seen.
HIDDEN = -3e38
NOTHING = -1e30

#: row → (first visible column or None, column after the last visible one or None)
Visible = Callable[[Any], tuple[Any, Any]]


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


def softmax_rows(
    p: Problem, scores: Any, stride: int, rows: Any, units: Any, state: RowState, visible: Visible
) -> None:
    """Scores become probabilities relative to each row's running maximum, which is brought up to
    date.

    Row r has `units`·32 scores at scores[r·stride]; visible(r) gives its first visible column and
    the one after its last, as columns of the tile, None where no bound can cut. state.alpha[r] is
    set to the factor that what was summed up before must be multiplied by.

    Three sweeps over the rows, not one: a row's maximum and rescaling factor are chains of
    dependent instructions, which overlap only when rows follow each other closely.
    """
    with T.serial(0, rows) as r:
        row = let(r * stride)
        low, high = visible(r)
        _cap_and_mask(p, scores, row, units, low, high)
        top = T.alloc_buffer((UNIT,), "float32")
        store(top, 0, load(scores, row, UNIT), UNIT)
        with T.serial(0, units - 1) as u:
            more = load(scores, row + (u + 1) * UNIT, UNIT)
            store(top, 0, T.max(load(top, 0, UNIT), more), UNIT)
        now = T.max(state.top[r], horizontal_max(load(top, 0, UNIT), UNIT))
        T.buffer_store(state.next, now, [r])
    with T.serial(0, (rows + (p.lanes - 1)) // p.lanes) as i:
        before, now = (load(part, i * p.lanes, p.lanes) for part in (state.top, state.next))
        store(state.alpha, i * p.lanes, exp2(before - now, p.lanes), p.lanes)
        store(state.top, i * p.lanes, now, p.lanes)
    with T.serial(0, rows) as r:
        now = let(splat(state.top[r], UNIT))
        total = T.alloc_buffer((UNIT,), "float32")
        store(total, 0, splat(0.0, UNIT), UNIT)
        with T.serial(0, units) as u:
            where = let(r * stride + u * UNIT)
            e = exp2(load(scores, where, UNIT) - now, UNIT)
            store(scores, where, e, UNIT)
            store(total, 0, load(total, 0, UNIT) + e, UNIT)
        # Lanes are added up at the very end only.
        part, width = load(total, 0, UNIT), UNIT
        while width > p.lanes:
            width //= 2
            part = let(pick(part, list(range(width))) + pick(part, list(range(width, 2 * width))))
        before = load(state.total, r * p.lanes, p.lanes)
        total_now = T.fma(before, splat(state.alpha[r], p.lanes), part)
        store(state.total, r * p.lanes, total_now, p.lanes)


def _cap_and_mask(p: Problem, scores: Any, row: Any, units: Any, low: Any, high: Any) -> None:
    if p.softcap:
        with T.serial(0, units) as u:
            where = let(row + u * UNIT)
            x = let(load(scores, where, UNIT) * splat(1.0 / p.softcap, UNIT))
            store(scores, where, tanh(x, UNIT) * splat(p.softcap * math.log2(math.e), UNIT), UNIT)
    if high is not None:
        first = let(T.min(T.max(high, 0) // UNIT, units))
        with T.serial(0, units - first) as u:
            mask(scores, row, first + u, None, high)
    if low is not None:
        count = let(T.min(T.max(low + (UNIT - 1), 0) // UNIT, units))
        with T.serial(0, count) as u:
            mask(scores, row, u, low, None)


class RowState:
    """Running maximum, sum (a vector a row) and last rescaling factor of each row of a tile."""

    def __init__(self, p: Problem, rows: int) -> None:
        padded = -(-rows // p.lanes) * p.lanes
        self.top, self.next, self.alpha = (T.alloc_buffer((padded,), "float32") for _ in range(3))
        self.total = T.alloc_buffer((rows * p.lanes,), "float32")
        with T.serial(0, padded) as r:
            T.buffer_store(self.top, T.float32(NOTHING), [r])
            T.buffer_store(self.next, T.float32(NOTHING), [r])
        with T.serial(0, rows) as r:
            store(self.total, r * p.lanes, splat(0.0, p.lanes), p.lanes)
