"""Stand-ins for cuBLASLt and hipBLASLt in Python, called through C, on an emulated card."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.emulator.hip import library as emulated
from pumice.emulator.hip.library import HipLibrary
from pumice.runtime.devices.blas import library
from pumice.runtime.devices.blas.table import BlasTable, argument_types
from pumice.runtime.devices.driver.library import Driver

if TYPE_CHECKING:
    import pytest

HANDLE = 0xB1A5
NEED = 4096  # bytes of workspace of every algorithm but the first


def _write(address: int, value: int, size: int) -> None:
    ctypes.memmove(address, value.to_bytes(size, "little"), size)


class FakeBlas:
    """C functions as attributes. card: what runs the products, in the order of a stream or of the
    graph that it is captured into. offered: algorithms that the heuristic finds. failing: role →
    status. lacking: symbols that are not there.

    seen: everything that `matmul` was given, as it was described.
    """

    def __init__(
        self,
        table: BlasTable,
        card: HipLibrary,
        *,
        offered: int = 3,
        failing: Mapping[str, int] | None = None,
        lacking: tuple[str, ...] = (),
    ) -> None:
        self.table, self.card, self.offered = table, card, offered
        self.failing = dict(failing or {})
        self.lacking = lacking
        self.objects: dict[int, dict[Any, Any]] = {}
        self.seen: list[dict[str, Any]] = []
        self.queries: list[dict[str, Any]] = []
        self._handles = itertools.count(0x7000, 0x10)
        self._roles = {symbol: role for role, symbol in table.symbols.items()}
        self._functions: dict[str, Any] = {}

    def __getattr__(self, symbol: str) -> Any:
        if symbol.startswith("_") or symbol not in self._roles or symbol in self.lacking:
            raise AttributeError(symbol)
        if symbol not in self._functions:
            role = self._roles[symbol]
            result = ctypes.c_size_t if role == "version" else ctypes.c_int

            def call(*given: int | None) -> int:
                if role in self.failing:
                    return self.failing[role]
                return int(getattr(self, f"_{role}")(*(value or 0 for value in given)) or 0)

            self._functions[symbol] = ctypes.CFUNCTYPE(result, *argument_types(role))(call)
        return self._functions[symbol]

    def _version(self) -> int:
        return 130102

    def _version_into(self, handle: int, out: int) -> None:
        assert handle == HANDLE
        _write(out, 100203, 4)

    def _create(self, out: int) -> None:
        _write(out, HANDLE, 8)

    def _destroy(self, handle: int) -> None:
        assert handle == HANDLE

    def _make(self, out: int, **values: Any) -> None:
        handle = next(self._handles)
        self.objects[handle] = values
        _write(out, handle, 8)

    def _free(self, handle: int) -> None:
        del self.objects[handle]

    def _layout_create(self, out: int, dtype: int, rows: int, columns: int, ld: int) -> None:
        assert ld >= rows
        self._make(out, dtype=dtype, rows=rows, columns=columns, ld=ld)

    def _matmul_create(self, out: int, compute: int, scale: int) -> None:
        assert (compute, scale) == (self.table.compute, self.table.types["float32"])
        self._make(out)

    def _preference_create(self, out: int) -> None:
        self._make(out)

    _layout_destroy = _matmul_destroy = _preference_destroy = _free

    def _matmul_set(self, handle: int, attribute: int, value: int, size: int) -> None:
        raw = ctypes.string_at(value, size)
        self.objects[handle][attribute] = (int.from_bytes(raw, "little"), size)

    _preference_set = _matmul_set

    def _heuristic(
        self, handle: int, matmul: int, a: int, b: int, c: int, d: int, preference: int,
        wanted: int, results: int, count: int,
    ) -> None:  # fmt: skip
        assert handle == HANDLE and c == d
        self.queries.append(dict(self.objects[preference]))
        room = self.objects[preference][self.table.workspace][0]
        size = self.table.result_bytes
        for index in range(min(wanted, self.offered)):
            at = results + index * size
            ctypes.memset(at, index + 1, self.table.algo_bytes)
            _write(at + self.table.algo_bytes, NEED * index, 8)
            _write(at + self.table.algo_bytes + 8, 0 if NEED * index <= room else 1, 4)
        _write(count, min(wanted, self.offered), 4)

    def _matmul(
        self, handle: int, matmul: int, alpha: int, a: int, a_layout: int, b: int, b_layout: int,
        beta: int, c: int, c_layout: int, d: int, d_layout: int, algorithm: int, workspace: int,
        workspace_bytes: int, stream: int,
    ) -> None:  # fmt: skip
        assert handle == HANDLE
        one, zero = (ctypes.c_float.from_address(v).value for v in (alpha, beta))
        assert (one, zero) == (1, 0) and (c, c_layout) == (d, d_layout)
        raw = ctypes.string_at(algorithm, self.table.algo_bytes)
        assert len(set(raw)) == 1 and 1 <= raw[0] <= self.offered
        layouts = [self.objects[layout] for layout in (a_layout, b_layout, d_layout)]
        self.seen.append(
            {
                "operation": dict(self.objects[matmul]), "a": (a, layouts[0]),
                "b": (b, layouts[1]), "d": (d, layouts[2]), "algorithm": raw[0],
                "workspace": (workspace, workspace_bytes),
            }
        )  # fmt: skip
        queue = self.card._stream(stream)

        def work() -> None:
            with np.errstate(all="ignore"):  # algorithms are timed on whatever lies there
                self._multiply((a, layouts[0]), (b, layouts[1]), (d, layouts[2]))

        queue.put(work)

    def _columns(self, address: int, layout: Mapping[str, int]) -> np.ndarray:
        """A column-major matrix, [rows, columns], as it lies in memory."""
        name = {number: name for name, number in self.table.types.items()}[layout["dtype"]]
        dtype = np.dtype(numpy_dtype(name))
        rows, columns, ld = layout["rows"], layout["columns"], layout["ld"]
        count = (columns - 1) * ld + rows
        flat = self.card.executor.read(address, count * dtype.itemsize).view(dtype)
        whole = np.zeros(columns * ld, dtype)
        whole[:count] = flat
        return whole.reshape(columns, ld)[:, :rows].T

    def _multiply(self, a: Any, b: Any, d: Any) -> None:
        """D = Aᵀ · B, into D's columns and nothing between them."""
        product = self._columns(*a).astype(np.float64).T @ self._columns(*b).astype(np.float64)
        address, layout = d
        name = {number: name for name, number in self.table.types.items()}[layout["dtype"]]
        for column in range(layout["columns"]):
            values = np.ascontiguousarray(product[:, column].astype(numpy_dtype(name)))
            at = address + column * layout["ld"] * values.itemsize
            self.card.executor.write(at, values.view(np.uint8))


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[FakeBlas]:
    """Emulated cards pass for real ones with a library; those that are opened are in the list."""
    opened: list[FakeBlas] = []
    cards: list[HipLibrary] = []
    open_library, init = emulated.open_library, Driver.__init__

    def opening(arch: str, *, sanitize: bool = False) -> HipLibrary:
        cards.append(open_library(arch, sanitize=sanitize))
        return cards[-1]

    def as_if_real(self: Driver, *given: Any, **options: Any) -> None:
        init(self, *given, **{**options, "emulated": False})

    def find(table: BlasTable, homes: Any) -> library.Blas:
        opened.append(FakeBlas(table, cards[-1]))
        return library.Blas(table, opened[-1], "/opt/rocm/lib/libhipblaslt.so.1")

    monkeypatch.setattr(emulated, "open_library", opening)
    monkeypatch.setattr(Driver, "__init__", as_if_real)
    monkeypatch.setattr(library, "find", find)
    return opened
