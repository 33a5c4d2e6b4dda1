"""concat in TensorIR: a copy, parallel over tokens when there may be many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pumice.operators.base import KernelSource, OperatorCall
from pumice.targets import Target


class Concat:
    """Two or three parts; any widths."""

    name = "concat.tir"

    def supports(self, call: OperatorCall, target: Target) -> str | None:
        if target.api != "cpu":
            return f"made for the CPU, not for {target.api}"
        parts = len(call.attrs["widths"])
        return None if parts in (2, 3) else f"takes 2 or 3 parts, not {parts}"

    def configs(self, call: OperatorCall, target: Target) -> Sequence[Mapping[str, int]]:
        return ({},)

    def source(self, call: OperatorCall, target: Target, config: Mapping[str, int]) -> KernelSource:
        widths = tuple(int(w) for w in call.attrs["widths"])
        symbol = f"concat_{'_'.join(map(str, widths))}_{call.entry}"
        names = ("a", "b", "c")[: len(widths)]
        function = _build(symbol, widths, parallel=call.entry != "decode")
        return KernelSource(symbol, (*names, "out", "T"), function)


def _build(symbol: str, widths: tuple[int, ...], *, parallel: bool) -> Any:
    from tvm.script import tirx as T

    total = sum(widths)
    wa, wb = widths[0], widths[1]
    loop = T.parallel if parallel else T.serial

    if len(widths) == 2:

        @T.prim_func
        def two(
            a: T.handle("float32"), b: T.handle("float32"), out: T.handle("float32"), n: T.int32
        ):  # type: ignore[no-untyped-def]
            T.func_attr({"global_symbol": symbol, "tirx.noalias": True})
            A = T.decl_buffer((n * wa,), "float32", data=a)
            B = T.decl_buffer((n * wb,), "float32", data=b)
            O = T.decl_buffer((n * total,), "float32", data=out)
            for t in loop(n):
                for j in T.serial(wa):
                    O[t * total + j] = A[t * wa + j]
                for j in T.serial(wb):
                    O[t * total + wa + j] = B[t * wb + j]

        return two

    wc = widths[2]

    @T.prim_func
    def three(
        a: T.handle("float32"),
        b: T.handle("float32"),
        c: T.handle("float32"),
        out: T.handle("float32"),
        n: T.int32,
    ):  # type: ignore[no-untyped-def]
        T.func_attr({"global_symbol": symbol, "tirx.noalias": True})
        A = T.decl_buffer((n * wa,), "float32", data=a)
        B = T.decl_buffer((n * wb,), "float32", data=b)
        C = T.decl_buffer((n * wc,), "float32", data=c)
        O = T.decl_buffer((n * total,), "float32", data=out)
        for t in loop(n):
            for j in T.serial(wa):
                O[t * total + j] = A[t * wa + j]
            for j in T.serial(wb):
                O[t * total + wa + j] = B[t * wb + j]
            for j in T.serial(wc):
                O[t * total + wa + wb + j] = C[t * wc + j]

    return three
