"""Builds a PrimFunc that follows the launch convention: raw pointers and int32 sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as T

from pumice.operators.base import KernelSource

# A pointer parameter says nothing of its extent; the buffer that views it only has to be large
# enough.
_EXTENT = 1 << 40

SIZE = "size"
FEW = 4  # tokens: fewer are computed sooner than threads are told of them


class KernelBuilder:
    """A function under construction: `k["x"]` is a parameter's flat buffer, `k["T"]` an int32
    size."""

    def __init__(self, symbol: str, parameters: Mapping[str, str]) -> None:
        self.symbol = symbol
        self.parameters = dict(parameters)
        self.values: dict[str, Any] = {}
        self.function: Any = None

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def source(self, workspace: Callable[[Mapping[str, int]], int] | None = None) -> KernelSource:
        """The finished kernel."""
        return KernelSource(self.symbol, tuple(self.parameters), self.function, workspace)


def identifier(name: str) -> str:
    """`name` as part of a symbol: dots and signs become words or underscores."""
    return name.replace(".", "_").replace("-", "m").replace("+", "p")


@contextmanager
def kernel(symbol: str, parameters: Mapping[str, str]) -> Iterator[KernelBuilder]:
    """Opens a function; its PrimFunc is there when the block ends.

    parameters: name → element type of what a pointer points to, or SIZE, in launch order.
    """
    builder = KernelBuilder(symbol, parameters)
    with IRBuilder() as ib:
        with T.prim_func():
            T.func_name(symbol)
            T.func_attr({"global_symbol": symbol, "tirx.noalias": True})
            raw = {
                name: T.arg(f"{identifier(name)}_", T.int32() if dtype == SIZE else T.handle(dtype))
                for name, dtype in parameters.items()
            }
            for name, dtype in parameters.items():
                builder.values[name] = (
                    raw[name] if dtype == SIZE else T.decl_buffer((_EXTENT,), dtype, data=raw[name])
                )
            # Scratch above 1 KiB comes from the runtime's per-thread pool, which asks for the
            # device.
            with T.attr(0, "device_id", 0):
                yield builder
    builder.function = ib.get().with_attr("global_symbol", symbol)


@contextmanager
def tasks(count: Any, *, parallel: bool, interleave: bool = False) -> Iterator[Any]:
    """A loop over independent tasks: on the thread pool, or on the calling thread.

    interleave: thread t of n takes tasks t, t+n, t+2n …, which balances work that shrinks with the
    index; otherwise each takes a contiguous stretch.
    """
    with ExitStack() as stack:
        if parallel and interleave:
            stack.enter_context(T.attr(0, "pragma_parallel_launch_point", 1))
            stack.enter_context(T.attr(0, "pragma_parallel_stride_pattern", 1))
        loop = T.parallel if parallel else T.serial
        yield stack.enter_context(loop(0, count))


def each(count: Any, least: int, body: Callable[[Any], None]) -> None:
    """`body` for independent tasks 0 … count − 1: on the thread pool from `least` of them on, for
    which a fork and join is worth it, else on the calling thread.
    """
    if least < 2:
        with tasks(count, parallel=True) as task:
            body(task)
        return
    with T.If(count >= least):
        for parallel, branch in ((True, T.Then), (False, T.Else)):
            with branch(), tasks(count, parallel=parallel) as task:
                body(task)


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """`if condition:` at run time."""
    with T.If(condition):
        with T.Then():
            yield


def symbol_name(operator: str, target_lanes: int, entry: str, **compiled_in: Any) -> str:
    """A symbol that names everything compiled in, so that equal symbols mean equal code."""
    parts = [operator, entry, f"v{target_lanes}"]
    for key, value in compiled_in.items():
        if value is None or value is False:
            continue
        text = (
            key
            if value is True
            else f"{key}{value!r}"
            if isinstance(value, float)
            else f"{key}{value}"
        )
        parts.append(identifier(text))
    return "pumice_" + "_".join(parts)
