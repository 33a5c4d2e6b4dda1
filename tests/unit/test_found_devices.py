"""What the drivers show, and which target a device is compiled for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from driver_fakes import emulated

from blas_fakes import FakeBlas
from pumice.cli import checks
from pumice.errors import DeviceError, UnsupportedError
from pumice.prepare import resolve_target
from pumice.runtime import found_devices
from pumice.runtime.devices.blas import library
from pumice.runtime.devices.blas.table import BlasTable
from pumice.runtime.devices.driver import choose
from pumice.runtime.devices.driver.library import Driver
from pumice.runtime.found_devices import device_line, driver_version, report
from pumice.runtime.gpu_load import find_device, target_of


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one Radeon and no NVIDIA driver."""
    device, _ = emulated("gfx1201")
    missing = dataclasses.replace(choose.TABLES["cuda"], libraries=("libnone.so",))
    monkeypatch.setitem(choose.TABLES, "cuda", missing)
    opened = choose.open_driver

    def open_driver(name: choose.DeviceName) -> Driver:
        real = name.api == "rocm" and name.emulated is None
        return device.driver if real else opened(name)

    monkeypatch.setattr(choose, "open_driver", open_driver)


@pytest.mark.usefixtures("no_cuda")
def test_reports_of_both_drivers() -> None:
    rocm, cuda = report("rocm"), report("cuda")
    assert (rocm.installed, rocm.missing, len(rocm.devices)) == (True, "", 1)
    assert rocm.version.count(".") == 2
    line = device_line(rocm.devices[0])
    assert line.startswith("rocm:0 AMD Radeon RX 9070 XT (gfx1201, 16.0 GiB, ")
    assert not cuda.installed and "libnone.so" in cuda.missing and "NVIDIA" in cuda.hint
    assert found_devices.devices_here() == f"the CPU, {line}"


@pytest.mark.usefixtures("no_cuda")
def test_native_is_the_device_s() -> None:
    assert find_device("rocm").arch == "gfx1201"
    assert resolve_target("native", "rocm").name == "gfx1201"
    assert resolve_target("native", "rocm:emulated-gfx942").name == "gfx942"
    assert resolve_target("gfx1100", "rocm").name == "gfx1100"
    assert resolve_target("native").api == "cpu"
    with pytest.raises(DeviceError, match="no rocm device 3") as error:
        resolve_target("native", "rocm:3")
    assert "This machine has the CPU, rocm:0" in str(error.value.hint)
    with pytest.raises(DeviceError, match=r"libnone\.so"):
        resolve_target("native", "cuda")


@pytest.mark.usefixtures("no_cuda")
def test_doctor_lists_them(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = {f.name: f for f in checks.devices()}
    assert findings["rocm"].status == "ok"
    assert "gfx1201" in findings["rocm"].detail and "target gfx1201" in findings["rocm"].detail
    assert findings["cuda"].detail == "no driver, no device"
    here = dict.fromkeys(("rocm", "cuda"), Path("/"))
    monkeypatch.setattr(found_devices, "NODES", here)
    cuda = {f.name: f for f in checks.devices()}["cuda"]
    assert cuda.status == "warning" and "libnone.so" in cuda.detail and cuda.hint


@pytest.mark.usefixtures("no_cuda")
def test_doctor_names_the_library_of_products(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(table: BlasTable, homes: object) -> library.Blas:
        raise DeviceError(f"{table.name} cannot be used; tried x: not found", hint="Install it.")

    monkeypatch.setattr(library, "find", missing)
    found = {f.name: f for f in checks.devices()}["hipBLASLt"]
    assert (found.status, found.hint) == ("ok", "Install it.")
    assert "by Pumice's own kernels: hipBLASLt cannot be used" in found.detail
    card = emulated("gfx1201")[1]
    monkeypatch.setattr(library, "find", lambda t, homes: library.Blas(t, FakeBlas(t, card), "/x"))
    found = {f.name: f for f in checks.devices()}["hipBLASLt"]
    assert found.detail.startswith(
        "hipBLASLt 1.2.3 (/x), on rocm:0 (AMD Radeon RX 9070 XT, gfx1201"
    )
    assert "cuBLASLt" not in {f.name for f in checks.devices()}


def test_a_driver_without_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    device, _ = emulated()

    monkeypatch.setattr(choose, "devices", lambda driver: [])
    monkeypatch.setattr(choose, "open_driver", lambda name: device.driver)
    found = report("rocm")
    assert found.installed and not found.devices
    assert "shows no device" in found.missing and "rocminfo" in found.hint


@pytest.mark.parametrize(
    ("api", "number", "text"),
    [("cuda", 12080, "12.8"), ("cuda", 13000, "13.0"), ("rocm", 60342131, "6.3.42131")],
)
def test_versions(api: str, number: int, text: str) -> None:
    class Fake:
        table = choose.TABLES[api]

        def call(self, role: str, out: object, attempted: str) -> None:
            assert role == "driver_version"
            out._obj.value = number  # type: ignore[attr-defined]

    assert driver_version(Fake()) == text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arch", "target"),
    [("gfx1100", "gfx1100"), ("sm_90", "sm_90"), ("sm_87", "sm_86"), ("sm_80", "sm_80")],
)
def test_targets_of_devices(arch: str, target: str) -> None:
    assert target_of(arch).name == target


@pytest.mark.parametrize("arch", ["gfx1036", "sm_75", "sm_103"])
def test_devices_without_a_target(arch: str) -> None:
    with pytest.raises(UnsupportedError, match=f"runs on {arch}; it has gfx90a"):
        target_of(arch)
