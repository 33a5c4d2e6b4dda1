"""An artifact whose last product a vendor's library may compute: with a stand-in for the library,
without it, on an emulated card, captured and profiled."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gpu_artifact as toy
import numpy as np
import pytest

from blas_fakes import FakeBlas, stand_in
from pumice.artifact import BufferRef, LibraryProduct, Manifest, Plan
from pumice.errors import ArtifactError, DeviceError
from pumice.runtime.devices.blas import hipblaslt, library
from pumice.runtime.gpu_executor import GpuExecutor
from pumice.runtime.load import load

CARD = "rocm:emulated-gfx1100"
PROMPT = np.random.default_rng(7).integers(0, toy.VOCABULARY, toy.CONTEXT).tolist()
ROOM = 1 << 16


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy, its last launch a product that a library may compute."""
    directory = tmp_path_factory.mktemp("toy")
    manifest = toy.write(directory, samples=False)
    entries = {name: with_product(manifest, plan) for name, plan in manifest.entries.items()}
    dataclasses.replace(manifest, entries=entries).save(directory / "manifest.json")
    return directory


def with_product(manifest: Manifest, plan: Plan, *, before: bool = False) -> Plan:
    """before: the library's way also has what fetches the rows, which the own kernels' has."""
    *rest, last = plan.launches
    record = next(r for r in manifest.kernels if r.symbol == last.kernel)
    given = dict(zip(record.arguments, last.arguments, strict=True))
    columns = toy.WIDTH if plan.width else toy.VOCABULARY
    product = LibraryProduct(
        x=given["x"], w=given["w"], out=given["out"],
        workspace=BufferRef("arena", offset=plan.arena_bytes), workspace_bytes=ROOM,
        m=plan.bounds["R"], n=columns, k=toy.WIDTH, dtype="float16", out_dtype="float32",
        x_stride=toy.WIDTH, w_stride=toy.WIDTH, out_stride=columns,
    )  # fmt: skip
    launches = (*rest, dataclasses.replace(last, product=product))
    if before:
        both = dataclasses.replace(product, launches=2, before=(rest[-1],))
        launches = (*rest[:-1], dataclasses.replace(rest[-1], product=both), last)
    return dataclasses.replace(plan, launches=launches, arena_bytes=plan.arena_bytes + ROOM)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[FakeBlas]:
    """The card passes for a real one with a library; what was opened is in the list."""
    return stand_in(monkeypatch)


def loaded(directory: Path, **options: Any) -> GpuExecutor:
    executor = load(directory, device=CARD, **options)
    assert isinstance(executor, GpuExecutor)
    return executor


def check(executor: GpuExecutor) -> None:
    wanted = toy.reference(PROMPT)
    for begin, end in ((0, 5), (5, 11), (11, 12)):
        logits = executor.step(toy.batch([(PROMPT[begin:end], begin, [3])]))
        assert np.linalg.norm(logits[0] - wanted[end - 1]) <= 1e-3 * np.linalg.norm(wanted[end - 1])
    hidden = executor.embed(toy.batch([(PROMPT[:5], 0, [1])], range(5)))
    other = toy.reference(PROMPT[:5], "proj")
    assert np.linalg.norm(hidden - other) <= 1e-3 * np.linalg.norm(other)


def test_an_emulated_card_keeps_own_kernels(artifact: Path) -> None:
    executor = loaded(artifact)
    said = "products: Pumice's own kernels; an emulated card has no hipBLASLt"
    assert executor.products == said and said in executor.notes
    check(executor)


def test_a_library_that_is_there(artifact: Path, found: list[FakeBlas]) -> None:
    executor = loaded(artifact)
    (fake,) = found
    said = "products of many tokens: hipBLASLt 1.2.3 (/opt/rocm/lib/libhipblaslt.so.1)"
    assert executor.products == said and executor.notes == [said]
    check(executor)
    calls = len(fake.seen)
    check(executor)  # from graphs alone
    assert len(fake.seen) == calls and len(fake.queries) == 3
    for call in fake.seen:
        start, room = call["workspace"]
        assert room == ROOM and start % 256 == 0
    batch = toy.batch([(PROMPT[:5], 0, [3])])
    plan = executor.manifest.entries[executor.plan_name(batch)]
    rows = executor.profile(batch)
    assert [row[0] for row in rows] == [launch.label for launch in plan.launches]
    assert rows[-1][1] == "hipBLASLt"
    assert [row[1] for row in rows[:-1]] == [launch.kernel for launch in plan.launches[:-1]]


def test_what_the_library_needs_first(tmp_path: Path, found: list[FakeBlas]) -> None:
    manifest = toy.write(tmp_path, samples=False)
    entries = {n: with_product(manifest, p, before=True) for n, p in manifest.entries.items()}
    dataclasses.replace(manifest, entries=entries).save(tmp_path / "manifest.json")
    executor = loaded(tmp_path)
    check(executor)
    rows = executor.profile(toy.batch([(PROMPT[:5], 0, [3])]))
    assert [row[1] for row in rows[-2:]] == ["hipBLASLt"] * 2 and found[0].seen


def test_a_library_that_is_not(
    artifact: Path, found: list[FakeBlas], monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(table: Any, homes: Any) -> library.Blas:
        assert homes == (Path("/nowhere"),)
        raise DeviceError("hipBLASLt cannot be used; tried x: not found", hint="To have it, y.")

    monkeypatch.setattr(library, "find", find)
    executor = loaded(artifact, library_homes=(Path("/nowhere"),))
    assert executor.notes == [
        "products: Pumice's own kernels; hipBLASLt cannot be used; tried x: not found. To have "
        "it, y."
    ]
    check(executor)


def test_a_library_without_an_algorithm(
    artifact: Path, found: list[FakeBlas], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = library.find

    def poor(table: Any, homes: Any) -> library.Blas:
        blas = find(table, homes)
        found[-1].offered = 0
        return blas

    monkeypatch.setattr(library, "find", poor)
    executor = loaded(artifact)
    check(executor)
    assert not found[-1].seen
    assert "Pumice's own kernel, as hipBLASLt has no algorithm for 2×32 · (43×32)" in (
        executor.products
    )


def test_a_library_that_fails(artifact: Path, found: list[FakeBlas]) -> None:
    executor = loaded(artifact)
    found[-1].failing["matmul"] = 5
    with pytest.raises(DeviceError, match="hipblasLtMatmul returned HIPBLAS_STATUS_EXECUTION_F"):
        executor.step(toy.batch([(PROMPT[:5], 0, [3])]))


def test_nothing_is_looked_for_in_vain(tmp_path: Path, found: list[FakeBlas]) -> None:
    toy.write(tmp_path, shapes=("extend@8x3x4",), samples=False)
    executor = loaded(tmp_path)
    assert (executor.products, executor.notes, found) == ("", [], [])


def test_a_damaged_product(artifact: Path, tmp_path: Path, found: list[FakeBlas]) -> None:
    manifest = Manifest.load(artifact / "manifest.json")
    for file in artifact.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    entries = {}
    for name, plan in manifest.entries.items():
        *rest, last = plan.launches
        assert last.product is not None
        product = dataclasses.replace(last.product, dtype="float12")
        launches = (*rest, dataclasses.replace(last, product=product))
        entries[name] = dataclasses.replace(plan, launches=launches)
    dataclasses.replace(manifest, entries=entries).save(tmp_path / "manifest.json")
    with pytest.raises(ArtifactError, match="is damaged: KeyError"):
        loaded(tmp_path)


def test_the_tables_have_the_same_roles() -> None:
    cuda, rocm = library.TABLES["cuda"], hipblaslt.TABLE
    assert set(cuda.symbols) ^ set(rocm.symbols) == {"version", "version_into"}
    assert set(cuda.types) == set(rocm.types)
