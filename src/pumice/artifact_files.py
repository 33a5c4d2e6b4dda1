"""Whether an artifact's files are those that the compiler wrote.

The manifest lists each with its size and its SHA-256. A file of up to _WHOLE bytes is compared to
the last bit when the artifact is loaded; of a larger one (weights, which are mapped and not read)
the size and the first _HEAD bytes, which hold the places of all tensors. `check_files(whole=True)`
reads everything.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pumice.artifact import AGAIN, FileRecord, Manifest
from pumice.errors import ArtifactError

MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
_HEAD = 1 << 20
_WHOLE = 32 << 20
_CHUNK = 4 << 20


def record_files(directory: Path) -> tuple[FileRecord, ...]:
    """Of every file below a directory but its manifest. OSError when one cannot be read."""
    paths = sorted(p for p in directory.rglob("*") if p.is_file())
    return tuple(
        FileRecord(
            path.relative_to(directory).as_posix(),
            path.stat().st_size,
            _digest(path, None),
            _digest(path, _HEAD),
        )
        for path in paths
        if path != directory / MANIFEST
    )


def check_files(
    directory: Path, manifest: Manifest, *, without_weights: bool = False, whole: bool = False
) -> int:
    """ArtifactError names the first file that is missing, of another size, or of other contents
    than the compiler wrote; returns the bytes that were compared.

    without_weights: the file of the weights may be missing. whole: every byte is compared.
    """
    compared = 0
    for record in manifest.files:
        path = directory / record.name
        try:
            size = path.stat().st_size
            if size != record.bytes:
                raise ArtifactError(
                    f"{path} is damaged: it has {size:,} bytes and was written with "
                    f"{record.bytes:,}",
                    hint=AGAIN,
                )
            all_of_it = whole or size <= _WHOLE
            found = _digest(path, None if all_of_it else _HEAD)
        except FileNotFoundError:
            if without_weights and record.name == WEIGHTS:
                continue
            raise ArtifactError(f"{path} is missing from the artifact", hint=AGAIN) from None
        except OSError as error:
            raise ArtifactError(f"{path} cannot be read: {error.strerror}", hint=AGAIN) from None
        if found != (record.sha256 if all_of_it else record.head):
            raise ArtifactError(
                f"{path} is damaged: its {size:,} bytes are not those that were written",
                hint=AGAIN,
            )
        compared += size if all_of_it else _HEAD
    return compared


def _digest(path: Path, nbytes: int | None) -> str:
    """SHA-256 of a file's first bytes, or of all."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if nbytes is not None:
            digest.update(file.read(nbytes))
        else:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()
