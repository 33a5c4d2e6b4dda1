"""Vectors of a fixed number of lanes, as TensorIR expressions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm.tirx as tir
from tvm.tirx.script.builder import ir as T


def load(buffer: Any, index: Any, lanes: int) -> Any:
    """`buffer[index : index + lanes]`."""
    return buffer[index] if lanes == 1 else buffer[T.ramp(index, 1, lanes)]


def store(buffer: Any, index: Any, value: Any, lanes: int) -> None:
    """`buffer[index : index + lanes] = value`."""
    T.buffer_store(buffer, value, [index if lanes == 1 else T.ramp(index, 1, lanes)])


def prefetch(buffer: Any, index: Any, *, to_write: bool = False) -> None:
    """Asks for the cache line of an element, to be read or written soon. The address need not be
    valid.
    """
    use, keep, data = T.int32(to_write), T.int32(2), T.int32(1)
    pointer = T.address_of(buffer[index])
    T.evaluate(T.call_llvm_intrin("void", "llvm.prefetch", pointer, use, keep, data))


def splat(value: Any, lanes: int) -> Any:
    """A scalar in every lane. A Python number becomes a float32."""
    scalar = T.float32(value) if isinstance(value, int | float) else value
    return scalar if lanes == 1 else T.broadcast(scalar, lanes)


def splat_int(value: int, lanes: int, dtype: str = "int32") -> Any:
    """An integer constant in every lane."""
    scalar = tir.const(value, dtype)
    return scalar if lanes == 1 else T.broadcast(scalar, lanes)


def typed(dtype: str, lanes: int) -> str:
    """The name of a vector type."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def cast(value: Any, dtype: str, lanes: int) -> Any:
    """Converts lane by lane: float16 to float32 is `vcvtph2ps`, float32 to float16 rounds to
    nearest even."""
    return T.cast(value, typed(dtype, lanes))


def reinterpret(value: Any, dtype: str, lanes: int) -> Any:
    """The same bits under another type."""
    return T.reinterpret(typed(dtype, lanes), value)


def let(value: Any) -> Any:
    """Names a value, so that it is computed once however often it is used.

    Floats and vectors go through a local buffer, which LLVM turns into a register: TVM's simplifier
    would put a bound value back into each of its uses, and its work doubles with every step of a
    reduction by halves.
    """
    if isinstance(value, int):
        return value
    dtype, _, lanes = str(value.ty.dtype).partition("x")
    if dtype == "bool" or not (lanes or "float" in dtype):
        return T.Bind(value)
    count = int(lanes or 1)
    cell = T.alloc_buffer((count,), dtype)
    store(cell, 0, value, count)
    return load(cell, 0, count)


def pick(value: Any, lanes: list[int]) -> Any:
    """The chosen lanes, as a vector of that many."""
    return tir.Shuffle([value], lanes)


def concat(a: Any, b: Any, lanes: int) -> Any:
    """Two vectors of `lanes` lanes, one after the other."""
    return tir.Shuffle([a, b], list(range(2 * lanes)))


def interleave(a: Any, b: Any, lanes: int) -> Any:
    """a0 b0 a1 b1 … of two vectors of `lanes` lanes."""
    order = [i + side * lanes for i in range(lanes) for side in (0, 1)]
    return tir.Shuffle([a, b], order)


def _fold(value: Any, lanes: int, combine: Any) -> Any:
    while lanes > 1:
        half = lanes // 2
        value = let(combine(pick(value, list(range(half))), pick(value, list(range(half, lanes)))))
        lanes = half
    return value


def horizontal_sum(value: Any, lanes: int) -> Any:
    """The sum of all lanes (a power of two of them), by halves."""
    return _fold(value, lanes, lambda a, b: a + b)


def horizontal_max(value: Any, lanes: int) -> Any:
    """The largest lane, by halves."""
    return _fold(value, lanes, T.max)


def pieces(extent: int, lanes: int) -> list[tuple[int, int, int]]:
    """Cuts `extent` into (start, lanes, count) runs: full vectors first, then ever smaller powers
    of two."""
    runs = []
    start = 0
    while lanes >= 1:
        count = (extent - start) // lanes
        if count:
            runs.append((start, lanes, count))
            start += count * lanes
        lanes //= 2
    return runs


def sweep(extent: int, lanes: int) -> Iterator[tuple[Any, int]]:
    """Loops over `extent` elements: yields (index, lanes) for each run of `pieces`, inside its
    loop.

    Use as `for index, lanes in sweep(n, 32): …`; the body must finish normally.
    """
    for start, width, count in pieces(extent, lanes):
        if count == 1:
            yield start, width
        else:
            with T.serial(0, count) as step:
                yield start + step * width, width
