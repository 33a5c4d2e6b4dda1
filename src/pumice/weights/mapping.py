"""A file mapped for reading: views without copies, and pages given back when not needed."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

import numpy as np

from pumice.errors import ModelFileError
from pumice.weights.magic import describe_content


class MappedFile:
    """`data` is the map, `view` a part of it. ModelFileError when it is empty or not there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as handle:
                self.data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelFileError(f"{path}: there is no such file") from None
        except IsADirectoryError:
            raise ModelFileError(f"{path} is a directory, not a model file") from None
        except ValueError:  # what mmap says of a file without bytes
            raise ModelFileError(
                f"{path}: this is no model file: {describe_content(b'')}"
            ) from None
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from None

    def __len__(self) -> int:
        return len(self.data)

    def view(self, offset: int, nbytes: int) -> np.ndarray:
        """uint8[nbytes], not copied and not writable."""
        if nbytes == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(self.data, np.uint8, nbytes, offset)

    def release(self, offset: int, nbytes: int) -> None:
        """These bytes need not stay in this process's memory; reading them again is allowed."""
        if nbytes:
            start = offset // mmap.PAGESIZE * mmap.PAGESIZE
            self.data.madvise(mmap.MADV_DONTNEED, start, offset + nbytes - start)

    def close(self) -> None:
        """Closes the map. A view that is still held keeps it alive until the view goes."""
        with contextlib.suppress(BufferError):
            self.data.close()
