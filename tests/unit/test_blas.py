"""Products by a vendor's library on the runtime's own device: descriptors, choice, capture, errors;
where libraries are looked for. Those here are stand-ins: `scripts/bench_vendor_blas` has real ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver_fakes import emulated

from blas_fakes import FakeBlas
from pumice.dtypes import numpy_dtype
from pumice.errors import DeviceError, UnsupportedError
from pumice.runtime.devices.blas import cublaslt, hipblaslt
from pumice.runtime.devices.blas.library import Blas, candidates, find
from pumice.runtime.devices.blas.product import Operands, Products, Shape
from pumice.runtime.devices.blas.table import BlasTable

TABLES = (cublaslt.TABLE, hipblaslt.TABLE)
ROOM = 1 << 16
POISON = 0xA5


class Bench:
    """A device with a stand-in library, and a product's matrices on it."""

    def __init__(self, table: BlasTable, **options: Any) -> None:
        self.device, card = emulated()
        self.fake = FakeBlas(table, card, **options)
        self.blas = Blas(table, self.fake, "/fake")
        self.products = Products(self.device, self.blas)
        self.stream = self.device.stream()

    def place(self, array: np.ndarray, offset: int = 0) -> int:
        buffer = self.device.allocate(array.nbytes + offset)
        self.keep = [*getattr(self, "keep", []), buffer]
        self.device.upload(buffer.address + offset, array, self.stream)
        self.stream.synchronize()
        return buffer.address + offset


def matrices(shape: Shape, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    dtype = numpy_dtype(shape.dtype)
    x = rng.standard_normal((shape.m, shape.x_stride)).astype(dtype)
    w = rng.standard_normal((shape.n, shape.w_stride)).astype(dtype)
    out = np.zeros((shape.m, shape.out_stride), numpy_dtype(shape.out_dtype))
    out.view(np.uint8)[:] = POISON
    return x, w, out


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
@pytest.mark.parametrize(
    "shape",
    [
        Shape(7, 5, 3, "float16", "float16", 3, 3, 5),
        Shape(4, 6, 8, "bfloat16", "bfloat16", 11, 9, 8),  # rows with gaps
        Shape(1, 3, 2, "float16", "float32", 2, 2, 3),
    ],
    ids=str,
)
def test_products(table: BlasTable, shape: Shape) -> None:
    bench = Bench(table)
    x, w, out = matrices(shape)
    places = [bench.place(m) for m in (x, w, out)]
    space = bench.device.allocate(ROOM)
    product = bench.products.bind(shape, Operands(*places, space.address, ROOM), bench.stream)
    bench.device.upload(places[2], out, bench.stream)  # the choice has written there
    seen = len(bench.fake.seen)
    product.issue(bench.stream)
    found = bench.device.read(places[2], out.shape, out.dtype)
    wanted = x[:, : shape.k].astype(np.float64) @ w[:, : shape.k].astype(np.float64).T
    assert (found[:, : shape.n] == wanted.astype(out.dtype)).all()
    assert (found[:, shape.n :] == out[:, shape.n :]).view(np.uint8).all()
    (call,) = bench.fake.seen[seen:]
    t = table.types
    assert call["a"] == (
        places[1],
        {"dtype": t[shape.dtype], "rows": shape.k, "columns": shape.n, "ld": shape.w_stride},
    )
    assert call["b"] == (
        places[0],
        {"dtype": t[shape.dtype], "rows": shape.k, "columns": shape.m, "ld": shape.x_stride},
    )
    assert call["d"] == (
        places[2],
        {"dtype": t[shape.out_dtype], "rows": shape.n, "columns": shape.m, "ld": shape.out_stride},
    )
    first, second = table.transpose
    assert call["operation"] == {first: (table.transposed, 4), second: (table.plain, 4)}
    assert call["workspace"] == (space.address, ROOM)


def test_what_the_heuristic_is_told() -> None:
    bench = Bench(cublaslt.TABLE)
    shape = Shape(2, 3, 4, "float16", "float16", 4, 4, 3)
    x, w, out = matrices(shape)
    places = [bench.place(x, 32), bench.place(w, 2), bench.place(out, 0)]
    bench.products.bind(shape, Operands(*places, 0, 4096), bench.stream)
    (told,) = bench.fake.queries
    assert told == {1: (4096, 8), 5: (2, 4), 6: (32, 4), 7: (256, 4), 8: (256, 4)}
    # of the three offered, the third needs more workspace than there is
    assert {call["algorithm"] for call in bench.fake.seen} == {1, 2}
    # and AMD's preferences know no alignments
    other = Bench(hipblaslt.TABLE)
    places = [other.place(matrix) for matrix in (x, w, out)]
    other.products.bind(shape, Operands(*places, 0, 4096), other.stream)
    assert other.fake.queries == [{1: (4096, 8)}]


def test_a_choice_is_made_once_and_descriptors_are_freed() -> None:
    bench = Bench(hipblaslt.TABLE)
    shape = Shape(2, 3, 4, "float16", "float16", 4, 4, 3)
    places = [bench.place(m) for m in matrices(shape)]
    operands = Operands(*places, 0, ROOM)
    first = bench.products.bind(shape, operands, bench.stream)
    calls = len(bench.fake.seen)
    assert calls >= 3  # each that is offered ran
    second = bench.products.bind(shape, operands, bench.stream)
    assert len(bench.fake.seen) == calls and len(bench.fake.queries) == 1
    assert second._arguments[1:3] != () and len(bench.fake.objects) == 4
    del first, second, bench.products
    assert not bench.fake.objects


def test_a_captured_product_runs_when_the_graph_does() -> None:
    bench = Bench(hipblaslt.TABLE)
    shape = Shape(5, 3, 4, "float16", "float32", 4, 4, 3)
    x, w, out = matrices(shape)
    places = [bench.place(m) for m in (x, w, out)]
    product = bench.products.bind(shape, Operands(*places, 0, ROOM), bench.stream)
    graph = bench.device.capture(bench.stream, lambda: product.issue(bench.stream))
    assert graph.nodes == 1
    for seed in (1, 2):
        x = matrices(shape, seed)[0]
        bench.device.upload(places[0], x, bench.stream)
        graph.launch(bench.stream)
        found = bench.device.read(places[2], out.shape, np.float32)
        wanted = x.astype(np.float64) @ w.astype(np.float64).T
        assert (found == wanted.astype(np.float32)).all()


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_no_algorithm(table: BlasTable) -> None:
    shape = Shape(2, 3, 4, "float16", "float16", 4, 4, 3)
    bench = Bench(table, offered=0)
    places = [bench.place(m) for m in matrices(shape)]
    with pytest.raises(UnsupportedError, match=rf"{table.name} has no algorithm for 2×4 · \(3×4\)"):
        bench.products.bind(shape, Operands(*places, 0, 4096), bench.stream)
    status = next(s for s, name in table.names.items() if name.endswith("NOT_SUPPORTED"))
    bench.fake.failing["heuristic"] = status
    with pytest.raises(UnsupportedError, match=table.names[status]):
        bench.products.bind(shape, Operands(*places, 0, 4096), bench.stream)
    bench.fake.failing["heuristic"] = status = {"cuda": 7, "rocm": 3}[table.api]
    with pytest.raises(DeviceError, match=rf"Heuristic returned \w+_INVALID_VALUE \({status}\)"):
        bench.products.bind(shape, Operands(*places, 0, 4096), bench.stream)


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.name)
def test_every_failure_has_its_own_name(table: BlasTable) -> None:
    shape = Shape(2, 3, 4, "float16", "float16", 4, 4, 3)
    for status, name in table.names.items():
        if status == 0:
            continue
        bench = Bench(table)
        places = [bench.place(m) for m in matrices(shape)]
        product = bench.products.bind(shape, Operands(*places, 0, ROOM), bench.stream)
        bench.fake.failing["matmul"] = status
        with pytest.raises(DeviceError, match=rf"{table.symbols['matmul']} returned {name} ") as e:
            product.issue(bench.stream)
        assert "--vendor-blas never" in str(e.value.hint)
    assert table.error_name(99) == "a status without a name"
    assert len(set(table.names.values())) == len(table.names)


def test_versions() -> None:
    assert str(Bench(cublaslt.TABLE).blas) == "cuBLASLt 13.1.2 (/fake)"
    assert str(Bench(hipblaslt.TABLE).blas) == "hipBLASLt 1.2.3 (/fake)"


def test_where_libraries_are_looked_for(tmp_path: Path) -> None:
    home, site = tmp_path / "home", tmp_path / "site"
    files = [
        home / "lib64" / "libcublasLt.so.12",
        site / "nvidia" / "cu13" / "lib" / "libcublasLt.so.13",
        site / "nvidia" / "cublas" / "lib" / "libcublasLt.so.12",
    ]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    found = [
        place
        for place in candidates(cublaslt.TABLE, (home,), (str(site), ""))
        if not place.startswith("/usr")
    ]
    assert found == [
        "libcublasLt.so.13", str(files[1]), str(files[0]), "libcublasLt.so.12", str(files[2]),
    ]  # fmt: skip
    rocm = tmp_path / "rocm" / "lib" / "libhipblaslt.so.0"
    rocm.parent.mkdir(parents=True)
    rocm.touch()
    places = list(candidates(hipblaslt.TABLE, (tmp_path / "rocm",), ()))
    assert places.index(str(rocm)) < places.index("libhipblaslt.so.0")


def test_the_first_that_works_is_taken(tmp_path: Path) -> None:
    _, card = emulated()
    lib = tmp_path / "lib64"
    lib.mkdir()
    for name in cublaslt.TABLE.libraries:
        (lib / name).touch()
    opened: list[str] = []

    def opener(name: str) -> FakeBlas:
        opened.append(name)
        if "/" not in name:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        if name.endswith("13"):
            return FakeBlas(cublaslt.TABLE, card, failing={"create": 1})
        return FakeBlas(cublaslt.TABLE, card)

    blas = find(cublaslt.TABLE, (tmp_path,), opener)
    assert blas.path == str(lib / "libcublasLt.so.12") and opened[0] == str(lib / opened[0][-17:])

    def broken(name: str) -> FakeBlas:
        if "/" in name:
            return FakeBlas(cublaslt.TABLE, card, lacking=("cublasLtMatmul",))
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    with pytest.raises(DeviceError) as error:
        find(cublaslt.TABLE, (tmp_path,), broken)
    message = error.value.message
    assert f"{lib}/libcublasLt.so.12 lacks cublasLtMatmul" in message
    assert "libcublasLt.so.13: not found" in message
    assert "nvidia-cublas" in str(error.value.hint)
