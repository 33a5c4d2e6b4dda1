"""From a device's name to the device.

    cuda, rocm                the discrete device with the most free memory (of equals, the first)
    cuda:1                    by its number among those the driver shows
    rocm:0000:03:00.0         by PCI id; 03:00.0 will do
    rocm:emulated-gfx1100     an emulated card of that architecture, in this process
    rocm:sanitized-gfx1100    the same, looking for races, reads before writes and NaN: slower

Which devices a driver shows is its own matter (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES).
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass

from pumice.errors import DeviceError, PumiceError, UsageError
from pumice.runtime.devices.driver import cuda, rocm
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.library import Driver, load
from pumice.runtime.devices.driver.memory import MemoryInfo
from pumice.runtime.devices.driver.properties import (
    DeviceProperties,
    device_count,
    read_properties,
)
from pumice.runtime.devices.driver.table import DriverTable

TABLES: dict[str, DriverTable] = {"cuda": cuda.TABLE, "rocm": rocm.TABLE}
# api → the function that opens an emulated card's library by its architecture.
EMULATED = {"rocm": "pumice.emulator.hip.library:open_library"}
_EQUAL = 1 << 30  # bytes
_PCI = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])")


@dataclass(frozen=True)
class DeviceName:
    """A parsed name: an API, and at most one of the three."""

    api: str
    ordinal: int | None = None
    pci: str | None = None
    emulated: str | None = None
    sanitize: bool = False


def parse(name: str) -> DeviceName:
    """UsageError lists the forms."""
    api, colon, rest = name.partition(":")
    if api in TABLES:
        pci = _PCI.fullmatch(rest.lower())
        if not colon:
            return DeviceName(api)
        if rest.isdecimal():
            return DeviceName(api, ordinal=int(rest))
        if pci:
            return DeviceName(api, pci=f"{(pci[1] or '0000')[-4:]}:{pci[2]}")
        kind, _, arch = rest.partition("-")
        if kind in ("emulated", "sanitized") and arch and api in EMULATED:
            return DeviceName(api, emulated=arch, sanitize=kind == "sanitized")
    raise UsageError(
        f"device {name!r} is not known; allowed: cuda, rocm, either with :NUMBER or :PCI-ID "
        "(rocm:0000:03:00.0), rocm:emulated-ARCH or rocm:sanitized-ARCH (rocm:emulated-gfx1100)"
    )


def open_driver(name: DeviceName) -> Driver:
    """The driver that a name needs: the installed one, or the emulator's."""
    table = TABLES[name.api]
    if name.emulated is None:
        return load(table)
    module, _, function = EMULATED[name.api].partition(":")
    opener = getattr(importlib.import_module(module), function)
    library = opener(name.emulated, sanitize=name.sanitize)
    return Driver(table, library, explain=library.explain, emulated=True)


def devices(driver: Driver) -> list[DeviceProperties]:
    """All that the driver shows."""
    return [read_properties(driver, ordinal) for ordinal in range(device_count(driver))]


def memory_of(driver: Driver, properties: DeviceProperties) -> MemoryInfo:
    """Free and total bytes of a device now; DeviceError when it cannot be opened."""
    return DriverDevice(driver, properties).memory()


def rank(properties: DeviceProperties, memory: MemoryInfo) -> tuple[bool, int, int, int]:
    """The device that suits best has the largest: discrete, much free memory (what differs by less
    than _EQUAL is equal, as desktops take and give some), much memory, first.
    """
    return (
        not properties.integrated,
        memory.free // _EQUAL,
        properties.memory_bytes,
        -properties.ordinal,
    )


def pick(
    driver: Driver, found: list[DeviceProperties], name: DeviceName, need: int = 0
) -> DeviceProperties:
    """`choose`, but where the name leaves several to choose from, the best by `rank` of those with
    `need` bytes free; of all when none has so many.
    """
    if name.ordinal is not None or name.pci is not None or len(found) < 2:
        return choose(found, name)
    ranked = []
    for properties in found:
        try:
            memory = memory_of(driver, properties)
        except PumiceError:  # taken by another process for itself, for instance
            continue
        ranked.append((memory.free >= need, rank(properties, memory), properties))
    if not ranked:
        return choose(found, name)  # opening it will say what is wrong
    return max(ranked, key=lambda row: row[:2])[2]


def choose(found: list[DeviceProperties], name: DeviceName) -> DeviceProperties:
    """By what devices are, without asking what they do now. DeviceError lists what there is."""
    if not found:
        raise DeviceError(
            f"the {name.api} driver shows no device",
            hint="Check its own tool (nvidia-smi, rocminfo) and CUDA_VISIBLE_DEVICES or "
            "HIP_VISIBLE_DEVICES.",
        )
    there = ", ".join(f"{p.ordinal} ({p.name}, {p.arch}, {p.pci})" for p in found)
    if name.pci is not None:
        for properties in found:
            if properties.pci[-12:] == name.pci:
                return properties
        raise DeviceError(f"no {name.api} device has the PCI id {name.pci}; there are {there}")
    if name.ordinal is not None:
        if name.ordinal >= len(found):
            raise DeviceError(f"there is no {name.api} device {name.ordinal}; there are {there}")
        return found[name.ordinal]
    return max(found, key=lambda p: (not p.integrated, p.memory_bytes, -p.ordinal))


def open_device(name: str) -> DriverDevice:
    """A device by name, ready for the calling thread."""
    parsed = parse(name)
    driver = open_driver(parsed)
    return DriverDevice(driver, pick(driver, devices(driver), parsed))
