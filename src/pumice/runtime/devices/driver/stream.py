"""Streams (queues of work on a device) and events (points in them)."""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pumice.runtime.devices.driver.device import DriverDevice

_NON_BLOCKING = 1
_DISABLE_TIMING = 2


class Stream:
    """Work in the order in which it was given; beside that of other streams."""

    def __init__(self, device: DriverDevice) -> None:
        self.device = device
        self._driver = device.driver
        handle = ctypes.c_void_p()
        self._driver.call(
            "stream_create", ctypes.byref(handle), _NON_BLOCKING, attempted="making a stream"
        )
        self.handle = handle.value
        self._finalizer = weakref.finalize(self, self._driver.status, "stream_destroy", self.handle)

    def synchronize(self) -> None:
        """Waits until all work is done; raises what went wrong in it."""
        self._driver.call("stream_synchronize", self.handle, attempted="waiting for a stream")

    def wait(self, event: Event) -> None:
        """Work given from now on starts after an event; the host doesn't wait."""
        self._driver.call(
            "stream_wait", self.handle, event.handle, 0, attempted="waiting for an event"
        )

    def record(self, event: Event) -> None:
        """The event happens when the work given so far is done."""
        self._driver.call("event_record", event.handle, self.handle, attempted="recording an event")

    def close(self) -> None:
        self._finalizer()


class Event:
    """A point in a stream. timed: `milliseconds_since` needs it of both events."""

    def __init__(self, device: DriverDevice, *, timed: bool = True) -> None:
        self._driver = device.driver
        handle = ctypes.c_void_p()
        flags = 0 if timed else _DISABLE_TIMING
        self._driver.call("event_create", ctypes.byref(handle), flags, attempted="making an event")
        self.handle = handle.value
        self._finalizer = weakref.finalize(self, self._driver.status, "event_destroy", self.handle)

    def done(self) -> bool:
        """Whether it has happened, without waiting."""
        status = self._driver.status("event_query", self.handle)
        if status == self._driver.table.errors["not_ready"]:
            return False
        if status:
            raise self._driver.error(status, "event_query", "asking for an event")
        return True

    def synchronize(self) -> None:
        """Waits until it has happened."""
        self._driver.call("event_synchronize", self.handle, attempted="waiting for an event")

    def milliseconds_since(self, start: Event) -> float:
        """Device time between two events that have happened."""
        out = ctypes.c_float()
        self._driver.call(
            "event_elapsed",
            ctypes.byref(out),
            start.handle,
            self.handle,
            attempted="reading the time between events",
        )
        return out.value

    def close(self) -> None:
        self._finalizer()
