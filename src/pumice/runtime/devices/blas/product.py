"""out = x · wᵀ by a vendor's library: descriptors, the choice of an algorithm, the call.

The libraries think in columns: a row-major [M, N] matrix is a column-major [N, M] one. So
outᵀ[N, M] = w[N, K] · x[M, K]ᵀ is what they are asked for, where A is w as a K × N matrix of
columns, transposed, and B is x as K × M.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

from pumice.errors import UnsupportedError
from pumice.runtime.devices.blas.library import Blas
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.stream import Stream

_WANTED = 6  # algorithms that are asked for, and timed
_RUNS = 3  # of each, behind one that does not count
_MARGIN = 1.03  # by which one must be faster than the library's favourite: short timings scatter
_MOST_ALIGNMENT = 256  # bytes; more says nothing to any algorithm


@dataclass(frozen=True)
class Shape:
    """Of a product: x [m, k] and w [n, k] in `dtype`, out [m, n] in `out_dtype`; strides are
    elements from a row to the next."""

    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    x_stride: int
    w_stride: int
    out_stride: int

    def __str__(self) -> str:
        return f"{self.m}×{self.k} · ({self.n}×{self.k})ᵀ, {self.dtype} → {self.out_dtype}"


@dataclass(frozen=True)
class Operands:
    """Addresses on the device, and bytes that the library may use as it likes."""

    x: int
    w: int
    out: int
    workspace: int
    workspace_bytes: int

    def alignments(self) -> tuple[int, int, int, int]:
        """Of A, B, C and D in bytes."""
        of = [min(a & -a, _MOST_ALIGNMENT) for a in (self.w, self.x, self.out)]
        return of[0], of[1], of[2], of[2]


class Products:
    """A library's products on one device. Descriptors and choices are made once a shape."""

    def __init__(self, device: DriverDevice, blas: Blas) -> None:
        self.device, self.blas = device, blas
        self._descriptors: dict[Shape, _Descriptors] = {}
        self._chosen: dict[object, ctypes.Array[ctypes.c_char]] = {}

    def bind(self, shape: Shape, operands: Operands, stream: Stream) -> Product:
        """A product ready to be issued. The algorithm is the one that the library's heuristic likes
        best, or another of the few that it offers if that is clearly faster, timed on these
        operands: `out` and the workspace are overwritten, and the stream is waited for. Not while a
        graph is captured.

        UnsupportedError when the library has no algorithm, DeviceError for what goes wrong.
        """
        descriptors = self._descriptors.get(shape)
        if descriptors is None:
            descriptors = self._descriptors[shape] = _Descriptors(self.blas, shape)
        key = (shape, operands.alignments(), operands.workspace_bytes)
        if key not in self._chosen:
            offered = self._offered(descriptors, operands)
            self._chosen[key] = self._fastest(descriptors, operands, offered, stream)
        return Product(descriptors, operands, self._chosen[key])

    def _offered(
        self, descriptors: _Descriptors, operands: Operands
    ) -> list[ctypes.Array[ctypes.c_char]]:
        """Algorithms that the heuristic finds fit, the one that it likes best first."""
        blas, table, shape = self.blas, self.blas.table, descriptors.shape
        size = table.result_bytes
        results = ctypes.create_string_buffer(_WANTED * size)
        count = ctypes.c_int()
        attempted = f"looking for an algorithm for {shape}"
        with _preference(blas, operands, attempted) as preference:
            a, b, c = descriptors.layouts
            status = blas.status(
                "heuristic", blas.handle, descriptors.matmul, a, b, c, c, preference, _WANTED,
                results, ctypes.byref(count),
            )  # fmt: skip
        name = table.error_name(status)
        if status and not name.endswith("NOT_SUPPORTED"):
            raise blas.error(status, "heuristic", attempted)
        found = []
        for index in range(0 if status else count.value):
            raw = results.raw[index * size : (index + 1) * size]
            need = int.from_bytes(raw[table.algo_bytes :][:8], "little")
            state = int.from_bytes(raw[table.algo_bytes + 8 :][:4], "little")
            if state == 0 and need <= operands.workspace_bytes:
                algorithm = ctypes.create_string_buffer(table.algo_bytes)
                algorithm.raw = raw[: table.algo_bytes]
                found.append(algorithm)
        if not found:
            why = f": {name}" if status else f" of {operands.workspace_bytes:,} bytes of workspace"
            raise UnsupportedError(f"{table.name} has no algorithm for {shape}{why}")
        return found

    def _fastest(
        self,
        descriptors: _Descriptors,
        operands: Operands,
        offered: list[ctypes.Array[ctypes.c_char]],
        stream: Stream,
    ) -> ctypes.Array[ctypes.c_char]:
        """By the device's clock. Each runs at least once here, so that its code is on the device
        before a graph is captured."""
        times = []
        for algorithm in offered:
            product = Product(descriptors, operands, algorithm)
            begin, end = self.device.event(), self.device.event()
            product.issue(stream)
            stream.record(begin)
            for _ in range(_RUNS):
                product.issue(stream)
            stream.record(end)
            stream.synchronize()
            times.append(end.milliseconds_since(begin))
        best = min(times)
        return offered[times.index(best) if times[0] > _MARGIN * best else 0]


class Product:
    """A product bound to its operands; `issue` is one C call. May be captured in a graph."""

    def __init__(
        self,
        descriptors: _Descriptors,
        operands: Operands,
        algorithm: ctypes.Array[ctypes.c_char],
    ) -> None:
        self._descriptors, self._algorithm = descriptors, algorithm
        self._blas = descriptors.blas
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        a, b, c = descriptors.layouts
        out = operands.out
        self._arguments = (
            self._blas.handle, descriptors.matmul, ctypes.addressof(self._one),
            operands.w, a, operands.x, b, ctypes.addressof(self._zero), out, c, out, c,
            ctypes.addressof(algorithm), operands.workspace, operands.workspace_bytes,
        )  # fmt: skip

    def issue(self, stream: Stream) -> None:
        """Puts the product into a stream. The thread must have activated the device."""
        status = self._blas.status("matmul", *self._arguments, stream.handle)
        if status:
            raise self._blas.error(status, "matmul", f"multiplying {self._descriptors.shape}")


class _Descriptors:
    """The library's objects for a shape: the operation, the layouts of A, B and D (which is C)."""

    def __init__(self, blas: Blas, shape: Shape) -> None:
        self.blas, self.shape = blas, shape
        table = blas.table
        dtype, out = table.types[shape.dtype], table.types[shape.out_dtype]
        self._attempted = f"describing {shape} to {table.name}"
        self.matmul = self._new("matmul", table.compute, table.types["float32"])
        for attribute, value in zip(table.transpose, (table.transposed, table.plain), strict=True):
            number = ctypes.c_int32(value)
            blas.call(
                "matmul_set", self.matmul, attribute, ctypes.byref(number), 4,
                attempted=self._attempted,
            )  # fmt: skip
        self.layouts = (
            self._new("layout", dtype, shape.k, shape.n, shape.w_stride),
            self._new("layout", dtype, shape.k, shape.m, shape.x_stride),
            self._new("layout", out, shape.n, shape.m, shape.out_stride),
        )

    def _new(self, kind: str, *values: int) -> int:
        made = ctypes.c_void_p()
        self.blas.call(f"{kind}_create", ctypes.byref(made), *values, attempted=self._attempted)
        weakref.finalize(self, self.blas.status, f"{kind}_destroy", made.value)
        assert made.value is not None
        return made.value


@contextlib.contextmanager
def _preference(blas: Blas, operands: Operands, attempted: str) -> Iterator[ctypes.c_void_p]:
    """What an algorithm must do with: bytes of workspace, alignments of the operands."""
    table, made = blas.table, ctypes.c_void_p()
    blas.call("preference_create", ctypes.byref(made), attempted=attempted)
    try:
        room = ctypes.c_uint64(operands.workspace_bytes)
        blas.call(
            "preference_set", made, table.workspace, ctypes.byref(room), 8, attempted=attempted
        )
        for attribute, value in zip(table.alignments, operands.alignments(), strict=False):
            number = ctypes.c_uint32(value)
            blas.call(
                "preference_set", made, attribute, ctypes.byref(number), 4, attempted=attempted
            )
        yield made
    finally:
        blas.status("preference_destroy", made)
