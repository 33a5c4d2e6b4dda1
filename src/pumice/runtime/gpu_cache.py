"""The paged key/value cache on a GPU: one allocation, a layer's keys before its values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pumice.artifact import CacheSpec
from pumice.errors import OutOfMemoryError
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.stream import Stream
from pumice.runtime.gpu_budget import CachePlan

ALIGNMENT = 256


class DeviceCache:
    """plan: as it was, or with fewer blocks where the device had no memory for so many."""

    def __init__(self, device: DriverDevice, spec: CacheSpec, plan: CachePlan) -> None:
        self._device = device
        self._block_bytes = (
            math.prod(spec.k_block_shape) * spec.itemsize,
            math.prod(spec.v_block_shape) * spec.itemsize,
        )
        while True:
            k, v = (-(-n * plan.num_blocks // ALIGNMENT) * ALIGNMENT for n in self._block_bytes)
            try:
                self._buffer = device.allocate(max(ALIGNMENT, spec.layers * (k + v)))
                break
            except OutOfMemoryError:
                smaller = plan.smaller(spec.block_size)
                if smaller is None:
                    raise
                plan = smaller
        self.plan = plan
        base = self._buffer.address
        self._layers = [(base + i * (k + v), base + i * (k + v) + k) for i in range(spec.layers)]

    def address(self, name: str, layer: int) -> int:
        """Of a layer's first block. name: "k" or "v"."""
        return self._layers[layer][("k", "v").index(name)]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]], stream: Stream) -> None:
        """Copies blocks in all layers: (from, to), one after the other."""
        for source, target in pairs:
            for layer in self._layers:
                for base, size in zip(layer, self._block_bytes, strict=True):
                    if size:
                        self._device.copy(base + target * size, base + source * size, size, stream)
