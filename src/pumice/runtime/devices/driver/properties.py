"""What a driver says about a device."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from pumice.errors import DeviceError
from pumice.runtime.devices.driver.library import Driver
from pumice.runtime.devices.driver.rocm import PROPERTIES_R0000, PROPERTIES_R0600


@dataclass(frozen=True)
class DeviceProperties:
    """arch: "sm_90", "gfx1100". pci: "0000:03:00.0". memory_bytes: in total. units: streaming
    multiprocessors or compute units, as the driver counts. wave: lanes that run together.
    shared_bytes: the most a block can have. Clocks in kHz. integrated: shares the host's memory.
    """

    api: str
    ordinal: int
    name: str
    arch: str
    pci: str
    memory_bytes: int
    units: int
    wave: int
    threads_per_block: int
    shared_bytes: int
    l2_bytes: int
    clock_khz: int
    memory_clock_khz: int
    memory_bus_bits: int
    integrated: bool


def device_count(driver: Driver) -> int:
    """Devices that the driver shows to this process; 0 when it has none."""
    # HIP 5 says hipErrorInvalidDevice from hipInit on a machine without any.
    none = [driver.table.errors[name] for name in ("no_device", "invalid_device")]
    status = driver.status("initialize", 0)
    out = ctypes.c_int()
    if status == 0:
        status = driver.status("device_count", ctypes.byref(out))
    if status in none:
        return 0
    if status:
        raise driver.error(status, "initialize", f"starting the {driver.table.api} driver")
    return out.value


def read_properties(driver: Driver, ordinal: int) -> DeviceProperties:
    """Properties of a device by its number among those the driver shows."""
    what = f"reading properties of device {ordinal}"
    handle = ctypes.c_int()
    driver.call("device_get", ctypes.byref(handle), ordinal, attempted=what)
    values = {}
    for name, number in driver.table.attributes.items():
        value = ctypes.c_int()
        driver.call("device_attribute", ctypes.byref(value), number, handle.value, attempted=what)
        values[name] = value.value
    major, minor = values.pop("major"), values.pop("minor")
    text = ctypes.create_string_buffer(256)
    driver.call("device_name", text, 256, handle.value, attempted=what)
    name = text.value.decode(errors="replace")
    driver.call("device_pci", text, 256, handle.value, attempted=what)
    memory = ctypes.c_size_t()
    driver.call("device_memory", ctypes.byref(memory), handle.value, attempted=what)
    arch = f"sm_{major}{minor}" if driver.table.api == "cuda" else _gcn_arch(driver, ordinal)
    integrated = bool(values.pop("integrated"))
    return DeviceProperties(
        api=driver.table.api,
        ordinal=ordinal,
        name=name,
        arch=arch,
        pci=text.value.decode(errors="replace").lower(),
        memory_bytes=memory.value,
        integrated=integrated,
        **values,
    )


def _gcn_arch(driver: Driver, ordinal: int) -> str:
    """hipDeviceProp_t.gcnArchName without its features ("gfx942:sramecc+:xnack-")."""
    new = driver.has("properties")
    size, offset = PROPERTIES_R0600 if new else PROPERTIES_R0000
    raw = ctypes.create_string_buffer(size + 4096)  # room for a later, larger structure
    driver.call(
        "properties" if new else "properties_old",
        raw,
        ordinal,
        attempted=f"reading properties of device {ordinal}",
    )
    arch = raw.raw[offset : offset + 256].split(b"\0")[0].decode(errors="replace").split(":")[0]
    if not arch.startswith("gfx"):
        raise DeviceError(
            f"device {ordinal} calls its architecture {arch!r}; gfx… is expected",
            hint="This version of ROCm is not known: report it with the driver's version.",
        )
    return arch
