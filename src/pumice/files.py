"""Directories and files that appear whole or not at all, and locks that die with their owner."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from pumice.errors import StorageError

_SPACE = "Free some space, or choose a place on another disk (for the cache: --cache-dir)."


def storage_error(error: OSError, path: Path) -> StorageError:
    """What a person can do about a failed write."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"no space is left on the disk of {path}",
            hint=_SPACE,
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return StorageError(
            f"{path} cannot be written: {error.strerror}",
            hint="Choose another place (for the cache: --cache-dir).",
        )
    return StorageError(f"writing {path} failed: {error}")


def require_space(folder: Path, nbytes: int) -> None:
    """StorageError when the disk of `folder` has less than `nbytes` free."""
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise StorageError(
            f"{nbytes / 1e9:.2f} GB are needed in {folder}; {free / 1e9:.2f} GB are free",
            hint=_SPACE,
        )


def make_directory(path: Path) -> None:
    """Creates a directory and its parents; StorageError when that cannot be done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, path) from error


def require_writable(folder: Path) -> None:
    """StorageError when no file can be written into a folder: asked before long work."""
    probe = folder / f".probe.{os.getpid()}"
    try:
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise storage_error(error, folder) from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path` (created when missing).

    The kernel drops a flock when its process ends in whatever way, so no lock is ever stale.
    """
    make_directory(path.parent)
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise storage_error(error, path) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _at_work(leftover: Path) -> bool:
    """Whether the process that a work directory is named after is another one, which still runs."""
    pid = leftover.name.split(".")[-2]
    return pid.isdecimal() and int(pid) != os.getpid() and Path("/proc", pid).exists()


@contextlib.contextmanager
def atomic_directory(final: Path) -> Iterator[Path]:
    """Yields a new directory beside `final` that takes its name at the end, or vanishes after an
    exception.

    Leftovers of killed processes are removed first. Of two processes that write one directory at
    once, the last one's stays.
    """
    make_directory(final.parent)
    for leftover in final.parent.glob(f".{glob.escape(final.name)}.*.tmp"):
        if not _at_work(leftover):
            shutil.rmtree(leftover, ignore_errors=True)
    work = final.parent / f".{final.name}.{os.getpid()}.tmp"
    try:
        work.mkdir()
    except OSError as error:
        raise storage_error(error, work) from error
    try:
        yield work
        if final.exists():  # a damaged one, or one that is asked to be replaced
            shutil.rmtree(final)
        os.replace(work, final)
    except OSError as error:
        shutil.rmtree(work, ignore_errors=True)
        if isinstance(error, StorageError):
            raise
        raise storage_error(error, final) from error
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def atomic_write_text(path: Path, text: str) -> None:
    """Writes a file that is there whole or not at all; its folder is made."""
    make_directory(path.parent)
    work = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        work.write_text(text)
        os.replace(work, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # a read-only disk refuses this too
            work.unlink()
        raise storage_error(error, path) from error
