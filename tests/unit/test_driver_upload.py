"""Uploads in parts through two pinned buffers."""

from __future__ import annotations

import numpy as np
import pytest
from driver_fakes import emulated

from pumice.errors import UsageError
from pumice.runtime.devices.driver.upload import Uploader


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, 128, 1000])
def test_parts_arrive_in_order(nbytes: int) -> None:
    device, _ = emulated()
    stream = device.stream()
    buffer = device.allocate(nbytes + 2)
    device.fill(buffer.address, 0xEE, nbytes + 2, stream)
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, dtype=np.uint8)
    parts: list[int] = []
    with Uploader(device, stream, chunk=64) as uploader:
        uploader.upload(buffer.address + 1, data, parts.append)
    got = device.read(buffer.address, (nbytes + 2,), np.uint8)
    assert got[0] == got[-1] == 0xEE
    np.testing.assert_array_equal(got[1:-1], data)
    assert sum(parts) == nbytes and all(part == 64 for part in parts[:-1])


def test_arrays_follow_each_other_and_may_change() -> None:
    device, _ = emulated()
    stream = device.stream()
    buffers = [device.allocate(400) for _ in range(3)]
    with Uploader(device, stream, chunk=96) as uploader:
        array = np.empty((10, 10), np.float32)
        for value, buffer in enumerate(buffers):
            array[:] = value
            uploader.upload(buffer.address, array)
    for value, buffer in enumerate(buffers):
        assert (device.read(buffer.address, (100,), np.float32) == value).all()


def test_misuse_is_refused() -> None:
    device, _ = emulated()
    with pytest.raises(UsageError, match="chunks of 0 bytes"):
        Uploader(device, device.stream(), chunk=0)
    with Uploader(device, device.stream(), chunk=8) as uploader:
        with pytest.raises(UsageError, match="contiguous"):
            uploader.upload(0, np.zeros((4, 4))[:, 1:])
