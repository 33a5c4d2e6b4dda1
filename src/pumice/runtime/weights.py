"""An artifact's weights, mapped from a safetensors file and not read.

The packed buffers are opaque bytes to safetensors (U8, one dimension, a multiple of 64 long), so
each starts on a 64-byte border
once the header is padded to one, which `compiler/export.py` does. The format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import numpy as np

from pumice.artifact import AGAIN
from pumice.errors import ArtifactError

ALIGNMENT = 64


class MappedWeights:
    """Tensor name → address and size. The mapping lives as long as the object."""

    def __init__(self, path: Path, *, alignment: int = ALIGNMENT) -> None:
        """alignment: bytes of which each tensor must begin at a multiple."""
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{path} cannot be mapped: {error}", hint=AGAIN) from None
        self.nbytes = len(self._map)
        size = int.from_bytes(self._map[:8], "little") if self.nbytes >= 8 else -1
        if not 0 < size <= self.nbytes - 8:
            raise ArtifactError(
                f"{path} is truncated: its header would take {size:,} bytes", hint=AGAIN
            )
        try:
            header = json.loads(self._map[8 : 8 + size])
            places = {
                name: (int(entry["data_offsets"][0]), int(entry["data_offsets"][1]))
                for name, entry in header.items()
                if name != "__metadata__"
            }
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{path} has a damaged header: {error!r}", hint=AGAIN) from None
        self._view = np.frombuffer(self._map, dtype=np.uint8)
        base = 8 + size
        self._tensors: dict[str, tuple[int, int]] = {}
        for name, (start, end) in places.items():
            if not 0 <= start <= end <= self.nbytes - base:
                raise ArtifactError(
                    f"{path} is truncated: tensor {name!r} ends at byte {base + end:,}, "
                    f"the file at "
                    f"{self.nbytes:,}",
                    hint=AGAIN,
                )
            if (base + start) % alignment:
                raise ArtifactError(f"{path}: tensor {name!r} is not aligned to {alignment} bytes")
            self._tensors[name] = (base + start, end - start)

    def address(self, name: str) -> int:
        """Where a tensor lies in memory; ArtifactError when there is none of that name."""
        try:
            return int(self._view.ctypes.data) + self._tensors[name][0]
        except KeyError:
            raise ArtifactError(f"the artifact's weights lack {name!r}") from None

    def bytes_of(self, name: str) -> np.ndarray:
        """A tensor's bytes, a view of the mapping."""
        start, size = self._tensors[name]
        return self._view[start : start + size]

    def names(self) -> list[str]:
        return list(self._tensors)

    def populate(self) -> None:
        """Asks the system to read the file ahead, so that the first step does not wait page by
        page."""
        if hasattr(mmap, "MADV_WILLNEED"):
            self._map.madvise(mmap.MADV_WILLNEED)
