"""Tokens drawn on the device: where they are put, and how they come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from pumice.errors import UsageError
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.stream import Stream
from pumice.runtime.gpu_inputs import ALIGNMENT

DAMAGED = -1
_ON_THE_WAY = 2  # launched steps whose tokens may be read


class Drawn:
    """The device's tokens and log-probabilities of the last launch, and pinned copies of the last
    two.
    """

    def __init__(self, device: DriverDevice, rows: int) -> None:
        """rows: the most that a launch may draw."""
        self._device = device
        self._part = -(-4 * rows // ALIGNMENT) * ALIGNMENT
        self._buffer = device.allocate(2 * self._part)
        self._host = [device.allocate_host(2 * self._part) for _ in range(_ON_THE_WAY)]
        self._done = [device.event(timed=False) for _ in range(_ON_THE_WAY)]
        self._launched = 0

    @property
    def tokens(self) -> int:
        """Their address: int32[rows]."""
        return self._buffer.address

    @property
    def logprobs(self) -> int:
        """Their address: float32[rows]."""
        return self._buffer.address + self._part

    def fetch(self, rows: int, stream: Stream) -> Callable[[], npt.NDArray[np.int32]]:
        """Puts the copy of the first rows into the stream; returns what waits for it, and gives
        the tokens int32[rows].
        """
        number = self._launched
        self._launched += 1
        turn = number % _ON_THE_WAY
        host, done = self._host[turn].array, self._done[turn]
        end = self._part + 4 * rows
        if rows:
            self._device.driver.call(
                "copy_to_host", self._host[turn].address, self._buffer.address, end, stream.handle,
                attempted="copying drawn tokens from the device",
            )  # fmt: skip
        stream.record(done)

        def result() -> npt.NDArray[np.int32]:
            if self._launched - number > _ON_THE_WAY:
                raise UsageError("the tokens of a step were asked for two launches later")
            done.synchronize()
            tokens = host[: 4 * rows].view(np.int32)
            logprobs = host[self._part : end].view(np.float32)
            found: npt.NDArray[np.int32] = tokens.copy()
            found[~np.isfinite(logprobs)] = DAMAGED
            return found

        return result


def runs(sources: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
    """(first token, first row, how many) of the stretches in which rows follow each other; −1 is
    in none.
    """
    at, count = 0, len(sources)
    values = sources.tolist()
    while at < count:
        begin = at
        at += 1
        if values[begin] < 0:
            continue
        while at < count and values[at] == values[at - 1] + 1:
            at += 1
        yield begin, values[begin], at - begin
