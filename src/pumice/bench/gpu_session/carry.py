"""A folder as one compressed archive in pieces, each in a folder of its own: what carries files may
limit how much it carries at once."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from pumice.errors import UsageError
from pumice.files import storage_error

PIECE_BYTES = 48 << 20
_NAME = "piece-{:02d}"


def pack(folder: Path, into: Path, *, piece_bytes: int = PIECE_BYTES) -> list[Path]:
    """Writes `into`/1/piece-01, `into`/2/piece-02, …; returns the folders 1, 2, …"""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for path in sorted(folder.rglob("*")):
            archive.add(path, str(path.relative_to(folder)), recursive=False)
    data = buffer.getvalue()
    found = []
    try:
        for number, start in enumerate(range(0, len(data), piece_bytes), start=1):
            piece = into / str(number) / _NAME.format(number)
            piece.parent.mkdir(parents=True, exist_ok=True)
            piece.write_bytes(data[start : start + piece_bytes])
            found.append(piece.parent)
    except OSError as error:
        raise storage_error(error, into) from error
    return found


def unpack(pieces: Path, folder: Path) -> None:
    """Joins the pieces below `pieces` and unpacks them. UsageError when one is missing."""
    found = sorted(pieces.glob("*/piece-*"))
    expected = [_NAME.format(n) for n in range(1, len(found) + 1)]
    if not found or [path.name for path in found] != expected:
        raise UsageError(
            f"{pieces} has {', '.join(p.name for p in found) or 'no pieces'}; "
            f"needed: {', '.join(expected) or 'piece-01 …'}",
            hint="Carry every folder that --prepare named.",
        )
    data = b"".join(path.read_bytes() for path in found)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            archive.extractall(folder, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise UsageError(
            f"the pieces in {pieces} make no whole archive: {error}",
            hint="Carry every folder that --prepare named.",
        ) from error
    except OSError as error:
        raise storage_error(error, folder) from error
