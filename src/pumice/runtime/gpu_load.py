"""Loads a GPU artifact: the device it was made for, and what fits there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pumice.artifact import Manifest
from pumice.errors import ArtifactError, DeviceError, UnsupportedError, UsageError
from pumice.runtime.devices.driver import choose
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.properties import DeviceProperties
from pumice.runtime.found_devices import devices_here
from pumice.runtime.gpu_budget import fixed_need, plan_cache
from pumice.runtime.gpu_executor import GpuExecutor
from pumice.runtime.gpu_plans import PlanTable
from pumice.runtime.gpu_weights import Progress
from pumice.targets import TARGETS, Target


def load_gpu(
    directory: Path,
    manifest: Manifest,
    *,
    device: str = "auto",
    num_blocks: int | None = None,
    context_length: int | None = None,
    contexts: int | None = None,
    random_weights: bool = False,
    progress: Progress | None = None,
    library_homes: Sequence[Path] = (),
) -> GpuExecutor:
    """Loads an artifact on `device`, or with "auto" on the best one of the artifact's API.

    num_blocks, context_length, contexts: see `gpu_budget.plan_cache`. random_weights: made up where
    the artifact has none. progress: bytes of weights done, in all. library_homes: folders of
    vendors' libraries (`Settings.library_homes`).
    Raises ArtifactError (damaged, or made for another device), DeviceError (no such driver or
    device), OutOfMemoryError (before anything is loaded), UsageError.
    """
    plans = PlanTable(manifest)
    need = fixed_need(directory, manifest, plans)
    opened = open_for(manifest, device, need.total)
    cache = plan_cache(
        manifest,
        plans.widest,
        opened.memory(),
        need,
        device=str(opened),
        num_blocks=num_blocks,
        context_length=context_length,
        contexts=contexts,
    )
    return GpuExecutor(
        directory,
        manifest,
        opened,
        plans,
        cache,
        random_weights=random_weights,
        progress=progress,
        library_homes=library_homes,
    )


def open_for(manifest: Manifest, device: str, need: int = 0) -> DriverDevice:
    """The device that a name means, which must be one that the artifact's code runs on. need: bytes
    that it should have free, where the name leaves a choice.
    """
    api, arch = str(manifest.target["api"]), str(manifest.target["arch"])
    if api not in choose.TABLES:
        raise ArtifactError(f"{_made_for(manifest)}; this version cannot run that")
    if device != "auto" and device.partition(":")[0] not in choose.TABLES:
        raise ArtifactError(
            f"{_made_for(manifest)}, not for device {device!r}",
            hint=f"Use --device {api} on a machine that has one, or compile the model for the "
            f"device: pumice compile MODEL --device {device}",
        )
    name = choose.parse(api if device == "auto" else device)
    if name.api != api:
        raise ArtifactError(
            f"{_made_for(manifest)}, not for device {device!r}",
            hint=f"Use --device {api}, or compile the model for the device: pumice compile MODEL "
            f"--device {device}",
        )
    try:
        driver = choose.open_driver(name)
        found = choose.devices(driver)
        if name.ordinal is None and name.pci is None:  # any device of the API will do
            found = [p for p in found if runs_on(arch, p.arch)] or found
        chosen = choose.pick(driver, found, name, need)
    except DeviceError as error:
        hint = f"{error.hint or ''} This machine has {devices_here()}.{_emulated(api, arch)}"
        raise DeviceError(f"{_made_for(manifest)}: {error.message}", hint=hint.strip()) from None
    if not runs_on(arch, chosen.arch):
        raise ArtifactError(
            f"{_made_for(manifest)}; {_describe(chosen)} cannot run that code",
            hint=f"Compile the model for it: pumice compile MODEL --device {device_name(name)}. "
            f"This machine has {devices_here()}.",
        )
    return DriverDevice(driver, chosen)


def _emulated(api: str, arch: str) -> str:
    """What to do without such a card at all."""
    if api not in choose.EMULATED:
        return ""
    return f" An emulated card runs the code, very slowly: --device {api}:emulated-{arch}."


def find_device(device: str) -> DeviceProperties:
    """The properties of the GPU that a name means. DeviceError lists what there is."""
    name = choose.parse(device)
    try:
        driver = choose.open_driver(name)
        return choose.pick(driver, choose.devices(driver), name)
    except DeviceError as error:
        raise DeviceError(
            error.message, hint=f"{error.hint or ''} This machine has {devices_here()}.".strip()
        ) from None


def device_for(target: Target, device: str = "auto") -> str:
    """The name of the device that a target's code will run on: the one that `device` names, or with
    "auto" the best that can. DeviceError when there is none, with what there is; UsageError when
    the one that is named is another.
    """
    name = choose.parse(target.api if device == "auto" else device)
    try:
        driver = choose.open_driver(name)
        every = choose.devices(driver)
        able = [p for p in every if runs_on(target.arch, p.arch)]
        chosen = choose.pick(driver, (able or every) if device == "auto" else every, name)
    except DeviceError as error:
        hint = f"{error.hint or ''} This machine has {devices_here()}."
        hint += _emulated(target.api, target.arch)
        raise DeviceError(
            f"{target.name} ({target.devices}) is what the model would run on: {error.message}",
            hint=hint.strip(),
        ) from None
    if not runs_on(target.arch, chosen.arch):
        kind = DeviceError if device == "auto" else UsageError
        raise kind(
            f"code for {target.name} ({target.devices}) does not run on {_describe(chosen)}",
            hint="Leave --target out: it follows the device. `pumice compile` takes any target. "
            f"This machine has {devices_here()}.",
        )
    return device if device != "auto" else f"{chosen.api}:{chosen.ordinal}"


def target_of(arch: str) -> Target:
    """The target to compile for, for a device of an architecture. UnsupportedError when none of
    those that Pumice has runs there.
    """
    rows = [row for row in TARGETS if runs_on(row.arch, arch)]
    if not rows:
        raise UnsupportedError(
            f"Pumice has no target whose code runs on {arch}; it has "
            f"{', '.join(row.name for row in TARGETS if row.api in choose.TABLES)}"
        )
    return max(rows, key=lambda row: (row.arch == arch, row.arch))


def device_name(name: choose.DeviceName) -> str:
    """A parsed name as people write it."""
    if name.emulated is not None:
        return f"{name.api}:{'sanitized' if name.sanitize else 'emulated'}-{name.emulated}"
    rest = name.pci if name.ordinal is None else name.ordinal
    return name.api if rest is None else f"{name.api}:{rest}"


def runs_on(arch: str, device: str) -> bool:
    """Whether code for one architecture runs on a device of another.

    NVIDIA's code before Hopper runs on later minor versions of its major one (CUDA Programming
    Guide, binary compatibility); Triton's for sm_90 and later uses what only that very one has.
    AMD's runs on its own.
    """
    if arch == device:
        return True
    made, there = arch.removeprefix("sm_"), device.removeprefix("sm_")
    if not (made.isdecimal() and there.isdecimal()):
        return False
    return int(made) < 90 and made[:-1] == there[:-1] and made < there


def _made_for(manifest: Manifest) -> str:
    target = manifest.target
    rows = [t for t in TARGETS if t.name == target["name"]]
    devices = f": {rows[0].devices}" if rows and rows[0].devices else ""
    return f"the artifact was compiled for {target['name']} ({target['api']}{devices})"


def _describe(p: DeviceProperties) -> str:
    return f"{p.api}:{p.ordinal} ({p.name}, {p.arch}, {p.pci})"
