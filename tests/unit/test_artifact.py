"""The manifest: written, read back equal, and refused with words when it is damaged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from pumice.artifact import (
    BufferRef,
    CacheSpec,
    KernelRecord,
    Launch,
    LibraryProduct,
    Manifest,
    ModelInfo,
    Plan,
    evaluate,
)
from pumice.errors import ArtifactError


def _manifest() -> Manifest:
    launch = Launch(
        kernel="k",
        arguments=(BufferRef("arena", offset=64), "T", ["ceildiv", "T", 8], 5),
        label="linear w",
        bytes_read=["*", "T", 3],
    )
    return Manifest(
        pumice="0",
        target={"name": "x86-64-v3", "api": "cpu", "arch": "x86-64-v3", "features": ["avx2"]},
        model=ModelInfo("m", "llama", 10, 64, 100, 200, 50, "q4f16_1"),
        cache=CacheSpec(2, 32, (3, 64, 32), (3, 32, 64)),
        entries={"decode": Plan((launch,), 128, {"T": 4}, BufferRef("arena", offset=0))},
        kernels=(KernelRecord("k", "linear", "linear.tir", "why", arguments=("x", "T")),),
    )


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    _manifest().save(path)
    loaded = Manifest.load(path)
    assert loaded == Manifest.load(path)
    assert loaded.entries["decode"].launches[0].arguments[0] == BufferRef("arena", offset=64)
    assert loaded.cache.bytes_per_block() == 2 * 2 * 2 * 3 * 64 * 32


def test_a_library_s_product(tmp_path: Path) -> None:
    """It is kept, and a launch without one is written as it always was."""
    manifest = _manifest()
    plan = manifest.entries["decode"]
    product = LibraryProduct(
        BufferRef("arena", offset=256), BufferRef("weight", "w"), BufferRef("arena", offset=512),
        BufferRef("arena", offset=4096), 1 << 20, 128, 64, 32, "float16", "float32", 32, 32, 64,
        launches=2, before=(Launch("u", (BufferRef("arena"), 3), "unpack", (1, 2, 3)),) * 4,
    )  # fmt: skip
    launches = (plan.launches[0], dataclasses.replace(plan.launches[0], product=product))
    entries = {"decode": dataclasses.replace(plan, launches=launches)}
    path = tmp_path / "manifest.json"
    dataclasses.replace(manifest, entries=entries).save(path)
    found = Manifest.load(path).entries["decode"].launches
    assert (found[0].product, found[1].product) == (None, product)
    assert path.read_text().count('"product"') == 1


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (7, 7),
        ("T", 5),
        (["ceildiv", "T", 2], 3),
        (["*", ["+", "T", 1], ["min", "S", 9]], 12),
        (["-", ["max", "T", "S"], ["//", 7, 2]], 2),
    ],
)
def test_expressions(expr: object, value: int) -> None:
    assert evaluate(expr, {"T": 5, "S": 2}) == value


@pytest.mark.parametrize("expr", ["X", ["^", 1, 2], ["+", 1], None, 1.5])
def test_bad_expressions_are_refused(expr: object) -> None:
    with pytest.raises(ArtifactError):
        evaluate(expr, {"T": 5})


@pytest.mark.parametrize("key", ["model", "cache", "entries", "target", "kernels"])
def test_missing_parts_are_refused(tmp_path: Path, key: str) -> None:
    path = tmp_path / "manifest.json"
    _manifest().save(path)
    data = json.loads(path.read_text())
    del data[key]
    path.write_text(json.dumps(data))
    with pytest.raises(ArtifactError, match="damaged"):
        Manifest.load(path)


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("target", None, "NoneType"),
        ("target", {}, "api|name"),
        ("target", {"name": "gfx1100", "api": "rocm", "arch": None}, "target arch is None"),
        ("entries", [], "items"),
        ("options", None, "options is None"),
        ("cache.block_size", 0, "block_size is 0"),
        ("cache.dtype", "int4", "'int4'; known: float16"),
    ],
)
def test_wrong_parts_are_refused(tmp_path: Path, part: str, value: object, said: str) -> None:
    path = tmp_path / "manifest.json"
    _manifest().save(path)
    data = json.loads(path.read_text())
    del data["checksum"], data["files"]  # as before they were kept
    *outer, key = part.split(".")
    (data[outer[0]] if outer else data)[key] = value
    path.write_text(json.dumps(data))
    with pytest.raises(ArtifactError, match=f"is damaged: .*({said})"):
        Manifest.load(path)


def test_other_schema_and_no_manifest(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    with pytest.raises(ArtifactError, match="no artifact"):
        Manifest.load(path)
    path.write_text('{"schema": 99}')
    with pytest.raises(ArtifactError, match="schema 99"):
        Manifest.load(path)
    path.write_text("[1]")
    with pytest.raises(ArtifactError):
        Manifest.load(path)
