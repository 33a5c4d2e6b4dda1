"""Atomic directories and locks: nothing half-written after an exception, a kill, or two processes
at once."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pumice.errors import StorageError
from pumice.files import atomic_directory, atomic_write_text, locked, require_space
from pumice.prepare import file_digest


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "a" / "artifact"
    with pytest.raises(RuntimeError), atomic_directory(final) as work:
        (work / "half").write_text("x")
        raise RuntimeError
    assert list(final.parent.iterdir()) == []
    with atomic_directory(final) as work:
        (work / "whole").write_text("x")
        assert not final.exists()
    assert [p.name for p in final.iterdir()] == ["whole"]
    with atomic_directory(final) as work:  # replaces
        (work / "new").write_text("x")
    assert [p.name for p in final.iterdir()] == ["new"]


_HOLD = """
import sys, time
from pathlib import Path
from pumice.files import atomic_directory, locked
root = Path(sys.argv[1])
with locked(root / "lock"), atomic_directory(root / "final") as work:
    (work / "half").write_text("x")
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_killed_owner_leaves_no_lock_and_its_rest_is_removed(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    assert any(p.name.endswith(".tmp") for p in tmp_path.iterdir())
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    start = time.monotonic()
    with locked(tmp_path / "lock"), atomic_directory(tmp_path / "final") as work:
        (work / "whole").write_text("x")
    assert time.monotonic() - start < 10
    assert sorted(p.name for p in tmp_path.iterdir()) == ["final", "lock"]


def test_two_processes_write_one_directory(tmp_path: Path) -> None:
    """Without a lock, as for a directory that people name: neither takes the other's work away."""
    child = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "held\n"
        (others,) = (p for p in tmp_path.iterdir() if p.name.endswith(".tmp"))
        with atomic_directory(tmp_path / "final") as work:
            (work / "whole").write_text("x")
        assert (others / "half").is_file()
        assert [p.name for p in (tmp_path / "final").iterdir()] == ["whole"]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    own = tmp_path / f".final.{os.getpid()}.tmp"  # of a killed process that had the same number
    own.mkdir()
    with atomic_directory(tmp_path / "final") as work:
        assert not (own / "half").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["final", "lock"]


def test_storage_errors_have_a_next_step(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(StorageError, match="file"), locked(blocker / "lock"):
        pass
    with pytest.raises(StorageError, match="are needed"):
        require_space(tmp_path, 1 << 60)


def test_a_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    digest = file_digest(model, tmp_path / "writable")
    (tmp_path / "cache").mkdir()
    for name in ("write_text", "mkdir", "unlink"):  # unlink fails for files that are not there too
        monkeypatch.setattr(Path, name, refuse)
    assert file_digest(model, tmp_path / "cache") == digest
    assert file_digest(model, tmp_path / "writable") == digest
    with pytest.raises(StorageError, match="Read-only"):
        atomic_write_text(tmp_path / "text", "x")
