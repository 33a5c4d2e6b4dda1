"""Device queries and error texts."""

from __future__ import annotations

import ctypes

from pumice.emulator.hip import abi
from pumice.emulator.hip.base import HipBase
from pumice.emulator.hip.properties import ATTRIBUTES, PCI, property_bytes
from pumice.emulator.hip.status import HipError, Status
from pumice.emulator.hip.work import Stream

_VERSION = 70_100_000  # as hipDriverGetVersion counts: 7.1.0


class DeviceCalls(HipBase):
    """hipInit, hipDevice*, hipGetDevice*, hipGetError*."""

    def _hipInit(self, flags: int) -> None:
        if flags:
            raise HipError(Status.INVALID_VALUE, f"flags {flags}; 0 is allowed")

    def _hipDriverGetVersion(self, out: int) -> None:
        abi.write_int(out, _VERSION)

    def _hipGetDeviceCount(self, out: int) -> None:
        abi.write_int(out, 1)

    def _hipDeviceGet(self, out: int, ordinal: int) -> None:
        self._ordinal(ordinal)
        abi.write_int(out, ordinal)

    def _hipDeviceGetName(self, out: int, room: int, device: int) -> None:
        self._ordinal(device)
        abi.write_text(out, room, self.card.name)

    def _hipDeviceTotalMem(self, out: int, device: int) -> None:
        self._ordinal(device)
        abi.write_size(out, self.card.memory_bytes)

    def _hipDeviceGetPCIBusId(self, out: int, room: int, device: int) -> None:
        self._ordinal(device)
        abi.write_text(out, room, PCI)

    def _hipDeviceGetAttribute(self, out: int, attribute: int, device: int) -> None:
        self._ordinal(device)
        if attribute not in ATTRIBUTES:
            raise HipError(Status.INVALID_VALUE, f"attribute {attribute} is not emulated")
        abi.write_int(out, ATTRIBUTES[attribute](self.card))

    def _hipGetDevicePropertiesR0600(self, out: int, device: int) -> None:
        self._ordinal(device)
        raw = property_bytes(self.card, new=True)
        ctypes.memmove(out, raw, len(raw))

    def _hipGetDeviceProperties(self, out: int, device: int) -> None:
        self._ordinal(device)
        raw = property_bytes(self.card, new=False)
        ctypes.memmove(out, raw, len(raw))

    def _hipSetDevice(self, ordinal: int) -> None:
        self._ordinal(ordinal)

    def _hipDeviceSynchronize(self) -> None:
        streams = [self._null_stream, *(o for o in self._objects.values() if isinstance(o, Stream))]
        for stream in streams:
            stream.refuse_capture()
        for stream in streams:
            self._run(stream)

    def _hipGetErrorName(self, status: int) -> int:
        known = status in set(Status)
        return self._text(Status(status).hip_name if known else "hipErrorUnknown")

    def _hipGetErrorString(self, status: int) -> int:
        return self._text(Status(status).text if status in set(Status) else "unknown error")

    def _text(self, text: str) -> int:
        """The address of a text that stays."""
        buffer = self._texts.setdefault(text, ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(buffer)
