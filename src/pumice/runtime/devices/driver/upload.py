"""Large uploads: the host reads the next part while the device copies the last one.

A mapped file's pages come from the disk when they are touched, and a driver copies pageable memory
through a staging area of its own, one after the other. Two pinned buffers of our own do both at
once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pumice.errors import UsageError
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.stream import Event, Stream

CHUNK = 32 << 20  # bytes: large enough for full speed over PCIe, small enough to pin


class Uploader:
    """Copies arrays to a device through two pinned buffers. Arrays may change after each call."""

    def __init__(self, device: DriverDevice, stream: Stream, *, chunk: int = CHUNK) -> None:
        if chunk < 1:
            raise UsageError(f"chunks of {chunk} bytes; 1 or more are allowed")
        self.chunk, self.stream, self._device = chunk, stream, device
        self._buffers = [device.allocate_host(chunk) for _ in range(2)]
        self._free: list[Event] = [device.event(timed=False) for _ in range(2)]
        self._turn = 0

    def upload(
        self,
        address: int,
        array: npt.NDArray[Any],
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Puts the copy of a contiguous array into the stream. progress: told each part's bytes.

        Returns when the last part has been read, not when it is on the device.
        """
        if not array.flags.c_contiguous:
            raise UsageError("an array to upload must be contiguous")
        source = array.reshape(-1).view(np.uint8)
        for begin in range(0, source.size, self.chunk):
            part = source[begin : begin + self.chunk]
            buffer, free = self._buffers[self._turn], self._free[self._turn]
            free.synchronize()  # the copy out of this buffer, two parts ago
            staged = buffer.array[: part.size]
            np.copyto(staged, part)
            self._device.upload(address + begin, staged, self.stream)
            self.stream.record(free)
            self._turn ^= 1
            if progress is not None:
                progress(part.size)

    def close(self) -> None:
        """Waits for the copies and frees the buffers."""
        for event, buffer in zip(self._free, self._buffers, strict=True):
            event.synchronize()
            event.close()
            buffer.free()

    def __enter__(self) -> Uploader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
