"""Every file of an artifact, damaged in every way: what tests of several targets share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner

from pumice.cli.app import app

WAYS = ("missing", "empty", "truncated", "flipped", "longer")


def damage(path: Path, way: str) -> None:
    """The file, in place of which a link may stand."""
    data = bytearray(path.read_bytes())
    path.unlink()
    if way == "missing":
        return
    if way == "flipped":
        data[len(data) // 2] ^= 1
    path.write_bytes({"empty": b"", "truncated": data[:-1], "longer": data + b"\0"}.get(way, data))


def copies(artifact: Path, folder: Path) -> Iterator[tuple[str, str, Path]]:
    """(file, way, directory) of copies with one damage each; two kernels stand for all."""
    files = sorted(p.relative_to(artifact) for p in artifact.rglob("*") if p.is_file())
    kernels = [f for f in files if f.parent.name == "kernels"]
    for file in [f for f in files if f not in kernels[2:]]:
        for way in WAYS:
            copy = folder / "copy"
            shutil.copytree(artifact, copy, copy_function=lambda a, b: Path(b).symlink_to(a))
            damage(copy / file, way)
            yield file.as_posix(), way, copy
            shutil.rmtree(copy)


def check(artifact: Path, folder: Path) -> int:
    """Each damage is an error of the artifact's kind that names the file; returns how many."""
    count = 0
    for file, way, copy in copies(artifact, folder):
        if (file, way) == ("manifest.json", "missing"):
            continue  # then it is no artifact but a directory
        result = CliRunner().invoke(app, ["run", "x", "-m", str(copy), "-n", "1"])
        assert result.exit_code == 9, (file, way, result.output)
        assert str(copy / file) in result.stderr and "--rebuild" in result.stderr, (file, way)
        assert "Traceback" not in result.output
        count += 1
    return count
