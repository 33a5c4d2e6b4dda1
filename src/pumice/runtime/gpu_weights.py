"""An artifact's weights on a GPU: one allocation, filled from the mapped file or with random
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pumice.artifact import AGAIN, WeightRecord
from pumice.dtypes import itemsize, numpy_dtype
from pumice.errors import ArtifactError
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.stream import Stream
from pumice.runtime.devices.driver.upload import Uploader
from pumice.runtime.weights import MappedWeights

ALIGNMENT = 256
_PADDING = 64  # bytes: a tensor of the file ends at a multiple of it
FILE = "weights.safetensors"
Progress = Callable[[int, int], None]  # bytes done, bytes in all
# Random bytes that are made once. They end inside a row, so that a matrix has few equal rows.
_CHUNK = (8 << 20) - 1252
_SPREAD = 0.02  # standard deviation of random floats, as models are initialized


def nbytes(record: WeightRecord) -> int:
    return math.prod(record.shape) * itemsize(record.dtype)


class WeightLayout:
    """Offsets of all tensors in one allocation, each at a multiple of 256 bytes."""

    def __init__(self, records: Sequence[WeightRecord]) -> None:
        self.records = tuple(records)
        self.offsets: dict[str, int] = {}
        end = 0
        for record in self.records:
            self.offsets[record.name] = end
            end += -(-nbytes(record) // ALIGNMENT) * ALIGNMENT
        self.nbytes = max(end, ALIGNMENT)


class DeviceWeights:
    """The tensors on the device: memory at first, `load` fills it."""

    def __init__(self, device: DriverDevice, layout: WeightLayout) -> None:
        self._device, self._layout = device, layout
        self.buffer = device.allocate(layout.nbytes)

    def load(
        self,
        stream: Stream,
        directory: Path,
        *,
        random_weights: bool = False,
        progress: Progress | None = None,
    ) -> int:
        """Fills all tensors and waits for it; returns how many were made up.

        random_weights: tensors that the file lacks (or all, without a file) are made up.
        ArtifactError when a tensor is missing or has another size than the manifest says.
        """
        device, layout = self._device, self._layout
        path = directory / FILE
        mapped = None
        if path.is_file() or not random_weights:
            mapped = MappedWeights(path, alignment=1)  # they are copied
            mapped.populate()
        there = set() if mapped is None else set(mapped.names())
        missing = [r for r in layout.records if r.name not in there]
        if missing and not random_weights:
            raise ArtifactError(
                f"{path} lacks {len(missing)} of {len(layout.records)} tensors, "
                f"the first is {missing[0].name!r}",
                hint="`pumice bench` runs an artifact without its weights; all else needs them.",
            )
        total = sum(nbytes(record) for record in layout.records)
        done = 0

        def count(size: int) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(done, total)

        if mapped is not None and len(missing) < len(layout.records):
            with Uploader(device, stream) as uploader:
                for record in layout.records:
                    if record.name in there:
                        data = _checked(mapped.bytes_of(record.name), record, path)
                        uploader.upload(self.address(record.name), data, count)
        for record in missing:
            _make_up(device, stream, self.address(record.name), record)
            count(nbytes(record))
        stream.synchronize()
        return len(missing)

    def address(self, name: str) -> int:
        """A tensor's address on the device; ArtifactError when there is none of that name."""
        try:
            return self.buffer.address + self._layout.offsets[name]
        except KeyError:
            raise ArtifactError(
                f"a plan names the weight {name!r}, which the manifest does not list", hint=AGAIN
            ) from None


def _checked(
    data: npt.NDArray[np.uint8], record: WeightRecord, path: Path
) -> npt.NDArray[np.uint8]:
    size = nbytes(record)
    if not 0 <= data.size - size < _PADDING:
        raise ArtifactError(
            f"{path}: tensor {record.name!r} has {data.size:,} bytes; {record.dtype}"
            f"{list(record.shape)} takes {nbytes(record):,}",
            hint=AGAIN,
        )
    return data[:size]


def _make_up(device: DriverDevice, stream: Stream, address: int, record: WeightRecord) -> None:
    """Fills a tensor: one chunk from the host, then copies of it on the device."""
    size = nbytes(record)
    if not size:
        return
    chunk = _chunk(record, min(size, _CHUNK))
    device.upload(address, chunk, stream)
    stream.synchronize()  # the chunk may go
    for begin in range(chunk.size, size, chunk.size):
        device.copy(address + begin, address, min(chunk.size, size - begin), stream)


def _chunk(record: WeightRecord, size: int) -> npt.NDArray[np.uint8]:
    """`size` bytes of the fill, of random floats, or of random bits; the same for one name."""
    dtype = numpy_dtype(record.dtype)
    count = size // dtype.itemsize
    generator = np.random.default_rng(list(record.name.encode()))
    if record.fill is not None:
        filled = np.full(count, record.fill)
        if record.signs:
            filled *= generator.choice([-1.0, 1.0], count)
        return filled.astype(dtype).view(np.uint8)
    if dtype.kind in "iu":
        return np.frombuffer(generator.bytes(size), np.uint8)
    values = generator.standard_normal(count, dtype=np.float32) * np.float32(_SPREAD)
    made: npt.NDArray[np.uint8] = values.astype(dtype).view(np.uint8)
    return made
