"""`--device auto`: which device, and the reason that is told, on machines that are made up."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from driver_fakes import emulated
from typer.testing import CliRunner

from pumice import api, device_choice
from pumice.cli import checks
from pumice.cli.app import app
from pumice.device_choice import settle
from pumice.errors import DeviceError, UsageError
from pumice.runtime import found_devices, gpu_load
from pumice.runtime.devices.driver import choose
from pumice.runtime.devices.driver.library import Driver
from pumice.runtime.devices.driver.memory import MemoryInfo
from pumice.runtime.devices.driver.properties import DeviceProperties
from pumice.runtime.found_devices import DriverReport
from pumice.targets import get_target

GB = 10**9
Machine = Callable[..., None]


def card(
    ordinal: int, arch: str, gib: int, *, api: str = "rocm", integrated: bool = False
) -> DeviceProperties:
    return dataclasses.replace(
        emulated()[0].properties, api=api, ordinal=ordinal, arch=arch, name=f"card {ordinal}",
        memory_bytes=gib << 30, integrated=integrated, pci=f"0000:0{ordinal}:00.0",
    )  # fmt: skip


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with these cards, of each of which so many GB are free ("" is a reason why that
    cannot be known). Drivers without a card are not installed.
    """

    def set_up(
        *cards: DeviceProperties,
        free: dict[int, float | str] | None = None,
        triton: bool = True,
        nodes: tuple[str, ...] = (),
    ) -> None:
        def of(api: str) -> list[DeviceProperties]:
            return [c for c in cards if c.api == api]

        def reports() -> list[DriverReport]:
            return [
                DriverReport(api, True, "6.3", tuple(of(api)))
                if of(api)
                else DriverReport(api, False, "", (), f"the {api} driver cannot be loaded")
                for api in choose.TABLES
            ]

        def open_driver(name: choose.DeviceName) -> Driver:
            if name.emulated is None and not of(name.api):
                raise DeviceError(f"the {name.api} driver cannot be loaded")
            driver = emulated()[0].driver
            driver.api = name.api  # type: ignore[attr-defined]
            return driver

        def memory_of(_driver: Driver, p: DeviceProperties) -> MemoryInfo:
            left = (free or {}).get(p.ordinal, p.memory_bytes / GB)
            if isinstance(left, str):
                raise DeviceError(left)
            return MemoryInfo(int(left * GB), p.memory_bytes)

        def triton_version() -> str:
            if not triton:
                raise UsageError("compiling needs triton", hint="pip install 'pumice[gpu]'")
            return "3"

        monkeypatch.setattr(device_choice, "reports", reports)
        monkeypatch.setattr(found_devices, "reports", reports)
        monkeypatch.setattr(choose, "open_driver", open_driver)
        monkeypatch.setattr(choose, "devices", lambda driver: of(driver.api))
        monkeypatch.setattr(choose, "memory_of", memory_of)
        monkeypatch.setattr(device_choice, "triton_version", triton_version)
        here = {api: Path("/" if api in nodes else "/none") for api in choose.TABLES}
        monkeypatch.setattr(found_devices, "NODES", here)

    return set_up


def test_without_a_gpu(machine: Machine) -> None:
    machine()
    found = settle()
    assert (found.device, found.target.api, found.passed_over) == ("cpu", "cpu", False)
    assert found.line == "on the CPU: no driver, no device"


def test_a_gpu_whose_driver_is_missing_is_said(machine: Machine) -> None:
    machine(nodes=("rocm",))
    found = settle()
    assert (found.device, found.passed_over) == ("cpu", True)
    assert "/ is here, but the rocm driver cannot be loaded" in found.line


def test_one_gpu(machine: Machine) -> None:
    machine(card(0, "gfx1100", 24), free={0: 20})
    found = settle(need=lambda target: 5 * GB)
    assert (found.device, found.target.name) == ("rocm:0", "gfx1100")
    assert found.line == (
        "on rocm:0 card 0 (gfx1100, 24.0 GiB, 0000:00:00.0): 18.6 GiB are free"
    )  # fmt: skip


def test_no_target_runs_there(machine: Machine) -> None:
    machine(card(0, "gfx1036", 8))
    found = settle()
    assert (found.device, found.passed_over) == ("cpu", True)
    assert "card 0 (gfx1036" in found.line and "no target whose code runs on gfx1036" in found.line


def test_nothing_to_compile_with(machine: Machine) -> None:
    machine(card(0, "gfx1100", 24), triton=False)
    found = settle(need=lambda target: pytest.fail("nobody needs to know"))
    assert (found.device, found.passed_over) == ("cpu", True)
    assert "rocm:0 card 0 (gfx1100" in found.line
    assert "compiling needs triton (pip install 'pumice[gpu]')" in found.line


def test_a_model_that_does_not_fit(machine: Machine) -> None:
    machine(card(0, "gfx1100", 24), free={0: 4})
    asked = []

    def need(target: object) -> int:
        asked.append(target)
        return 5 * GB

    found = settle(need=need)
    assert (found.device, found.passed_over, len(asked)) == ("cpu", True, 1)
    assert "has 3.33 GB to give" in found.line and "needs about 5.00" in found.line


def test_a_gpu_that_another_process_keeps(machine: Machine) -> None:
    machine(card(0, "gfx1100", 24), card(1, "gfx1100", 24), free={0: "opening it failed"})
    found = settle()
    assert found.device == "rocm:1" and "opening it failed" in found.line


@pytest.mark.parametrize(
    ("free", "best"),
    [
        ({}, 1),  # equals: the first; the integrated one is the largest, and not discrete
        ({1: 10.0}, 2),  # most free memory
        ({1: 25.5, 2: 25.6}, 1),  # which differ by a desktop's moods
        ({1: 2.0, 2: 2.0, 3: 2.0}, 0),  # a discrete one has no use where the model does not fit
        ({1: 2.0, 2: 2.0, 3: 12.0}, 3),
    ],
)
def test_of_several(machine: Machine, free: dict[int, float], best: int) -> None:
    machine(
        card(0, "gfx1151", 96, integrated=True), card(1, "gfx1100", 24), card(2, "gfx1100", 24),
        card(3, "gfx1200", 16), free=free,
    )  # fmt: skip
    found = settle(need=lambda target: 6 * GB)
    assert found.device == f"rocm:{best}"


def test_both_drivers(machine: Machine) -> None:
    machine(card(0, "sm_90", 140, api="cuda"), card(0, "gfx1100", 24))
    assert settle().device == "cuda:0"


def test_what_is_named_is_not_chosen(machine: Machine) -> None:
    machine(card(0, "gfx1100", 24), card(1, "gfx1201", 16))
    assert settle("cpu").device == "cpu"
    assert settle("rocm:1").target.name == "gfx1201"
    assert settle("auto", "sm_90").target.name == "sm_90"
    assert settle("auto", "SM_90").device == "auto"  # only compiled
    found = settle("auto", "Native", cpu_only="--threads 2 is for the CPU")
    assert (found.device, found.line) == ("cpu", "on the CPU: --threads 2 is for the CPU")
    assert all(not s.line for s in (settle("cpu"), settle("rocm:1"), settle("auto", "sm_90")))


def test_a_target_needs_its_card_where_the_model_runs(machine: Machine, tmp_path: Path) -> None:
    """Said before the model is fetched or compiled; `compile` takes any target."""
    machine(card(0, "gfx1201", 16), card(1, "gfx1100", 24))
    assert gpu_load.device_for(get_target("gfx1100")) == "rocm:1"
    assert gpu_load.device_for(get_target("gfx1100"), "rocm:1") == "rocm:1"
    for command in (["chat", "-p", "x"], ["run", "x"], ["bench"], ["serve", "--port", "0"]):
        for more, status, said in (
            (["--target", "gfx1102"], 10, "(Radeon RX 7600, RX 7600 XT)) does not run on rocm:1"),
            (["--target", "gfx1100", "--device", "rocm:0"], 2, "does not run on rocm:0 (card 0"),
            (["--target", "sm_90"], 10, "Hopper (H100, H200)) is what the model would run on"),
            (["--target", "sm_90"], 10, "This machine has the CPU, rocm:0 card 0"),
        ):
            arguments = [*command, *more, "-m", "missing.gguf", "--cache-dir", str(tmp_path)]
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == status and said in result.stderr, result.output
    result = CliRunner().invoke(app, ["compile", "-m", "missing.gguf", "--target", "sm_90"])
    assert result.exit_code == 3, result.output


def test_a_target_on_an_emulated_card() -> None:
    name = "rocm:emulated-gfx942"
    assert gpu_load.device_for(get_target("gfx942"), name) == name
    with pytest.raises(UsageError, match=r"gfx1100 .* does not run on rocm:0 \(AMD Instinct"):
        gpu_load.device_for(get_target("gfx1100"), name)


def test_an_api_alone_is_its_freest_device(machine: Machine) -> None:
    machine(card(0, "gfx1100", 24), card(1, "gfx1100", 24), free={0: 3})
    assert gpu_load.find_device("rocm").ordinal == 1
    assert gpu_load.find_device("rocm:0").ordinal == 0
    machine(card(0, "gfx1100", 24), card(1, "gfx1100", 24), free={0: "busy", 1: "busy"})
    assert gpu_load.find_device("rocm").ordinal == 0  # whose opening says what is wrong


def test_doctor_says_what_auto_is(machine: Machine) -> None:
    machine(card(0, "gfx1100", 24))
    assert checks.default_device().detail.startswith("on rocm:0 card 0 (gfx1100")
    machine(card(0, "gfx1036", 1))
    found = checks.default_device()
    assert (found.status, found.name) == ("warning", "auto") and "gfx1036" in found.detail


@pytest.mark.parametrize(("free", "level"), [(20.0, "INFO"), (1.0, "WARNING")])
def test_from_python_the_log_says_it(
    machine: Machine, free: float, level: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A GPU that is not used is a warning, which Python shows where nobody set up a log."""
    caplog.set_level(logging.INFO, "pumice")
    machine(card(0, "gfx1100", 24), free={0: free})
    model = "random:llama-2-7b"
    found = api._settle(model, "auto", None, None, None, None, tmp_path)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == (level, found.line)
    assert found.passed_over == (level == "WARNING")
    assert api._settle(model, "auto", None, None, "int8", None, tmp_path).device == "cpu"


def test_a_hidden_gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """HIP_VISIBLE_DEVICES="" leaves a driver that shows nothing."""
    machine(nodes=("rocm",))
    hidden = DriverReport("rocm", True, "6.3", (), "the rocm driver shows no device")
    monkeypatch.setattr(device_choice, "reports", lambda: [hidden])
    assert settle().line == "on the CPU: / is here, but the rocm driver shows no device"


def test_the_command_says_it_first(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pumice.runtime.memory.available_bytes", lambda: 1 << 30)
    arguments = ["compile", "--random-weights", "llama-2-7b", "--cache-dir", str(tmp_path)]
    machine(card(0, "gfx1100", 24), free={0: 1})
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 6  # not on that GPU, and this machine has too little for the CPU's
    assert result.stderr.startswith("on the CPU: rocm:0 card 0"), result.stderr
    machine(card(0, "gfx1100", 24))
    named = [*arguments, "--activations", "float32", "--device", "rocm"]
    result = CliRunner().invoke(app, named)
    assert result.exit_code == 2 and "'float32'; allowed for gfx1100" in result.stderr
    result = CliRunner().invoke(app, [*arguments, "--activations", "float32"])
    assert result.stderr.startswith("on the CPU: --activations float32 are for the CPU")
    result = CliRunner().invoke(app, [*arguments, "--threads", "1"])
    assert result.exit_code == 2  # compile has no such option
