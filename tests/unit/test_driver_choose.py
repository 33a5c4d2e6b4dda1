"""Names of devices, the choice among several, and drivers that are missing or too old."""

from __future__ import annotations

import dataclasses

import pytest
from driver_fakes import emulated

from pumice.emulator.hip.cards import CARDS, card
from pumice.emulator.hip.status import Status
from pumice.errors import DeviceError, UsageError
from pumice.runtime.devices.driver import choose as chooser
from pumice.runtime.devices.driver.choose import TABLES, DeviceName, choose, parse
from pumice.runtime.devices.driver.library import Driver, load
from pumice.runtime.devices.driver.properties import DeviceProperties, device_count
from pumice.runtime.devices.driver.table import ROLES


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cuda", DeviceName("cuda")),
        ("rocm:2", DeviceName("rocm", ordinal=2)),
        ("rocm:0000:03:00.0", DeviceName("rocm", pci="0000:03:00.0")),
        ("cuda:00000000:C1:00.0", DeviceName("cuda", pci="0000:c1:00.0")),
        ("rocm:41:00.1", DeviceName("rocm", pci="0000:41:00.1")),
        ("rocm:emulated-gfx1100", DeviceName("rocm", emulated="gfx1100")),
        ("rocm:sanitized-gfx942", DeviceName("rocm", emulated="gfx942", sanitize=True)),
    ],
)
def test_names(text: str, name: DeviceName) -> None:
    assert parse(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vulkan",
        "cuda:",
        "cuda:-1",
        "rocm:x",
        "cuda:emulated-sm_90",
        "rocm:emulated-",
        "rocm:sanitized",
    ],
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"allowed: cuda, rocm.*emulated-gfx1100"):
        parse(text)


def several() -> list[DeviceProperties]:
    """An integrated GPU first, as laptops have it, then two equal cards, then a smaller one."""
    base = emulated()[0].properties
    return [
        dataclasses.replace(
            base, ordinal=i, name=f"card {i}", memory_bytes=size << 30, integrated=i == 0,
            pci=f"0000:0{i}:00.0",
        )
        for i, size in enumerate([96, 24, 24, 16])
    ]  # fmt: skip


def test_the_largest_discrete_device_is_the_default() -> None:
    found = several()
    assert choose(found, DeviceName("rocm")) is found[1]
    assert choose(found[:1], DeviceName("rocm")) is found[0]
    assert choose(found, DeviceName("rocm", ordinal=3)) is found[3]
    assert choose(found, DeviceName("rocm", pci="0000:02:00.0")) is found[2]


@pytest.mark.parametrize(
    "name", [DeviceName("rocm", ordinal=4), DeviceName("rocm", pci="0001:02:00.0")]
)
def test_a_device_that_is_not_there(name: DeviceName) -> None:
    with pytest.raises(DeviceError, match=r"card 0.*card 1.*card 2.*card 3"):
        choose(several(), name)
    with pytest.raises(DeviceError, match="shows no device"):
        choose([], name)


def test_an_emulated_card_by_name() -> None:
    name = parse("rocm:emulated-gfx1201")
    driver = chooser.open_driver(name)
    assert [p.arch for p in chooser.devices(driver)] == ["gfx1201"]
    with pytest.raises(UsageError, match=r"'gfx906'; allowed: gfx1100"):
        chooser.open_driver(parse("rocm:emulated-gfx906"))


@pytest.mark.parametrize("arch", CARDS)
def test_every_card_reads_as_its_architecture(arch: str) -> None:
    properties = emulated(arch)[0].properties
    assert (properties.arch, properties.name) == (arch, card(arch).name)
    assert properties.wave == (64 if arch.startswith("gfx9") else 32)


def test_a_missing_driver_says_what_was_looked_for() -> None:
    table = dataclasses.replace(TABLES["rocm"], libraries=("libnot-there.so.1",))
    with pytest.raises(DeviceError, match=r"libnot-there\.so\.1") as caught:
        load(table)
    assert "rocminfo" in str(caught.value)


class Partial:
    """A library without some functions."""

    def __init__(self, library: object, missing: set[str]) -> None:
        self._library, self._missing = library, missing

    def __getattr__(self, name: str) -> object:
        if name in self._missing:
            raise AttributeError(name)
        return getattr(self._library, name)


def test_an_old_driver_names_what_it_lacks() -> None:
    _, library = emulated()
    with pytest.raises(DeviceError, match="lacks hipGraphLaunch"):
        Driver(TABLES["rocm"], Partial(library, {"hipGraphLaunch"}))


def test_rocm_5_has_the_older_property_structure() -> None:
    _, library = emulated("gfx90a")
    driver = Driver(TABLES["rocm"], Partial(library, {"hipGetDevicePropertiesR0600"}))
    assert [p.arch for p in chooser.devices(driver)] == ["gfx90a"]


def test_a_driver_that_does_not_start() -> None:
    _, library = emulated()
    driver = Driver(TABLES["rocm"], library)
    library.fail("hipInit", Status.INVALID_VALUE)
    with pytest.raises(DeviceError, match="starting the rocm driver failed"):
        device_count(driver)
    assert device_count(driver) == 1
    library.fail("hipInit", Status.INVALID_DEVICE)  # HIP 5 where there is no GPU
    assert device_count(driver) == 0


def test_both_tables_fill_every_role_that_they_share() -> None:
    own = {
        "cuda": {
            "activate", "context_retain", "context_release", "function_shared", "launch_extended",
            "error_name_into", "error_text_into",
        },
        "rocm": {
            "activate_ordinal", "properties", "properties_old", "launch_cooperative",
            "error_name", "error_text",
        },
    }  # fmt: skip
    shared = set(ROLES) - own["cuda"] - own["rocm"]
    for api, table in TABLES.items():
        assert set(table.symbols) == shared | own[api]
        assert len(set(table.symbols.values())) == len(table.symbols)
    assert TABLES["cuda"].attributes.keys() == TABLES["rocm"].attributes.keys()
    assert TABLES["cuda"].errors.keys() == TABLES["rocm"].errors.keys()
