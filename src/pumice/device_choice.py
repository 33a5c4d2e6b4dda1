"""What `--device auto` means for a model: the GPU where one is usable, else the CPU, and why.

A GPU is usable when its driver shows it, a target's code runs on it, this machine can compile for
it, and the model fits what is free there. What stands in the way is part of the answer: a CPU is
never chosen in silence where there is a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pumice.errors import PumiceError, UsageError
from pumice.prepare import resolve_target, triton_version
from pumice.runtime.devices.driver import choose
from pumice.runtime.devices.driver.memory import MemoryInfo
from pumice.runtime.devices.driver.properties import DeviceProperties
from pumice.runtime.found_devices import device_line, reports
from pumice.runtime.gpu_budget import headroom
from pumice.runtime.gpu_load import target_of
from pumice.targets import Target, get_target

Need = Callable[[Target], int]  # bytes that a model takes at least, compiled for a target


@dataclass(frozen=True)
class Settled:
    """device: as the runtime takes it. line: for a person, what was chosen and why; "" where
    nothing was. passed_over: there is a GPU, and it is not used.
    """

    device: str
    target: Target
    line: str = ""
    passed_over: bool = False


def settle(
    device: str = "auto",
    target: str | None = None,
    *,
    need: Need | None = None,
    cpu_only: str = "",
) -> Settled:
    """Where a model will run, and what it is compiled for.

    device: "auto", "cpu" or a GPU's name; target: a row's name, or None or "native" for the
    device's. need: asked only where there is a GPU. cpu_only: why only the CPU will do, if so.
    Raises what the names raise: UsageError, DeviceError, UnsupportedError.
    """
    if target is not None and target.lower() != "native":
        return Settled(device, get_target(target))
    if device != "auto":
        return Settled(device, resolve_target("native", device))
    if cpu_only:
        return _on_cpu(cpu_only, passed_over=False)
    usable, obstacles = _usable()
    if usable:
        try:
            triton_version()
        except UsageError as error:
            obstacles += [f"{device_line(p)} is here, but {error.message}" for p in usable]
            return _on_cpu(f"{'; '.join(obstacles)} ({error.hint})", passed_over=True)
    fitting = []
    for properties in usable:
        memory = _memory(properties)
        target_here = target_of(properties.arch)
        if isinstance(memory, str):
            obstacles.append(f"{device_line(properties)}: {memory}")
            continue
        room = memory.free - headroom(memory)
        needed = 0 if need is None else need(target_here)
        if needed > room:
            obstacles.append(
                f"{device_line(properties)} has {room / 1e9:.2f} GB to give, and the model needs "
                f"about {needed / 1e9:.2f}"
            )
            continue
        fitting.append((properties, memory))
    if not fitting:
        return _on_cpu("; ".join(obstacles) or "no driver, no device", passed_over=bool(obstacles))
    properties, memory = max(fitting, key=lambda pair: choose.rank(*pair))
    why = f"{memory.free / 2**30:.1f} GiB are free"
    if len(fitting) > 1:
        why += f"; the best of {len(fitting)} GPUs"
    if obstacles:
        why += f" ({'; '.join(obstacles)})"
    return Settled(
        f"{properties.api}:{properties.ordinal}",
        target_of(properties.arch),
        f"on {device_line(properties)}: {why}",
    )


def _on_cpu(why: str, *, passed_over: bool) -> Settled:
    return Settled("cpu", resolve_target("native", "cpu"), f"on the CPU: {why}", passed_over)


def _usable() -> tuple[list[DeviceProperties], list[str]]:
    """GPUs that a target's code runs on, and what is wrong with the others."""
    usable, obstacles = [], []
    for report in reports():
        if report.obstacle:
            obstacles.append(report.obstacle)
        for properties in report.devices:
            try:
                target_of(properties.arch)
            except PumiceError as error:
                obstacles.append(f"{device_line(properties)}: {error.message}")
                continue
            usable.append(properties)
    return usable, obstacles


def _memory(properties: DeviceProperties) -> MemoryInfo | str:
    """What is free on a device now, or why that cannot be known: another process may have it for
    itself.
    """
    try:
        return choose.memory_of(choose.open_driver(choose.DeviceName(properties.api)), properties)
    except PumiceError as error:
        return error.message
