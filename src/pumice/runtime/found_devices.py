"""The GPUs that this machine's drivers show, for people and for messages."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from pumice.errors import PumiceError
from pumice.runtime.devices.driver import choose
from pumice.runtime.devices.driver.library import Driver
from pumice.runtime.devices.driver.properties import DeviceProperties

# What the kernel shows when there is such a GPU, whether or not its driver library is installed.
NODES = {"rocm": Path("/dev/kfd"), "cuda": Path("/dev/nvidiactl")}


@dataclass(frozen=True)
class DriverReport:
    """One API. installed: whether its driver could be loaded. version: the driver's, "" when it
    does not say. missing: why it shows no device, and the next step; "" when it shows some.
    """

    api: str
    installed: bool
    version: str
    devices: tuple[DeviceProperties, ...]
    missing: str = ""
    hint: str = ""

    @property
    def obstacle(self) -> str:
        """What is between this machine and a GPU that it has; "" when it has none, or it works."""
        if self.missing and NODES[self.api].exists():
            return f"{NODES[self.api]} is here, but {self.missing}"
        return ""


def report(api: str) -> DriverReport:
    """What the driver of an API says; never raises."""
    try:
        driver = choose.open_driver(choose.DeviceName(api))
    except PumiceError as error:
        return DriverReport(api, False, "", (), error.message, error.hint or "")
    try:
        found = tuple(choose.devices(driver))
        choose.choose(list(found), choose.DeviceName(api))  # says what to do when there is none
        return DriverReport(api, True, driver_version(driver), found)
    except PumiceError as error:
        return DriverReport(api, True, "", (), error.message, error.hint or "")


def reports() -> list[DriverReport]:
    """Of every API."""
    return [report(api) for api in choose.TABLES]


def device_line(properties: DeviceProperties) -> str:
    """rocm:0 AMD Radeon RX 7900 XTX (gfx1100, 24.0 GiB, 0000:03:00.0)"""
    p = properties
    kind = ", integrated" if p.integrated else ""
    return (
        f"{p.api}:{p.ordinal} {p.name} ({p.arch}, {p.memory_bytes / 2**30:.1f} GiB, {p.pci}{kind})"
    )


def devices_here() -> str:
    """One phrase: all devices of this machine."""
    found = [device_line(p) for r in reports() for p in r.devices]
    return ", ".join(["the CPU", *found])


def driver_version(driver: Driver) -> str:
    """CUDA counts 1000·major + 10·minor; HIP 10⁷·major + 10⁵·minor + patch."""
    out = ctypes.c_int()
    driver.call("driver_version", ctypes.byref(out), attempted="reading the driver's version")
    number = out.value
    if driver.table.api == "cuda":
        return f"{number // 1000}.{number % 1000 // 10}"
    return f"{number // 10**7}.{number // 10**5 % 100}.{number % 10**5}"
