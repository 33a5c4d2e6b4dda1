"""A GPU's roofline: its copy bandwidth, measured, and the matrix unit's peak, from the data sheet.

The peak is a figure of the largest device of the architecture; on a smaller one it can't be
reached.
"""

from __future__ import annotations

from pumice.bench.roofline import Roofline
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.targets import Target

_BYTES = 1 << 30  # of each buffer, much more than any last cache
_TRIAL = (
    1 << 25
)  # of a first copy; a device that takes _SLOW for it (an emulated one) is left at it
_SLOW = 2e-3  # seconds
_COPIES = 10
_ROUNDS = 5


def copy_bandwidth(device: DriverDevice) -> float:
    """Bytes read and written a second, of the fastest of some rounds of copies."""
    most = max(1 << 20, device.memory().free // 4 >> 20 << 20)
    trial = min(_TRIAL, most)
    best = _copies(device, trial, 1, 2)
    if 2 * trial / best > _SLOW:
        return best
    return _copies(device, min(_BYTES, most), _COPIES, _ROUNDS)


def _copies(device: DriverDevice, size: int, copies: int, rounds: int) -> float:
    stream = device.stream()
    with device.allocate(size) as source, device.allocate(size) as to:
        device.fill(source.address, 1, size, stream)
        best = 0.0
        for _ in range(rounds):
            begin, end = device.event(), device.event()
            stream.record(begin)
            for _ in range(copies):
                device.copy(to.address, source.address, size, stream)
            stream.record(end)
            end.synchronize()
            seconds = max(end.milliseconds_since(begin) / 1e3, 1e-9)
            best = max(best, 2 * size * copies / seconds)
    return best


def measure(device: DriverDevice, target: Target) -> Roofline:
    """threads is 0; both peaks are those of 16-bit floats, in which all products are computed."""
    device.activate()
    peak = target.peak["float16"]
    return Roofline(target.name, 0, copy_bandwidth(device), peak, peak, "float16, data sheet")
