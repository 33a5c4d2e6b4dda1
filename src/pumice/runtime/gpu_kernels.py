"""A GPU artifact's kernels, loaded on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pumice.artifact import AGAIN, KernelRecord, Launch, Manifest
from pumice.errors import ArtifactError
from pumice.runtime.devices.driver import launch as driver_launch
from pumice.runtime.devices.driver.device import DriverDevice

_ELF = b"\x7fELF"


class Kernels:
    """The artifact's code objects on a device, and its kernels by symbol."""

    def __init__(self, device: DriverDevice, directory: Path, manifest: Manifest) -> None:
        self.records: Mapping[str, KernelRecord] = {r.symbol: r for r in manifest.kernels}
        self._modules: dict[str, driver_launch.Module] = {}
        self._functions: dict[str, driver_launch.Function] = {}
        for record in manifest.kernels:
            if record.file not in self._modules:
                image = _read(directory / record.file)
                self._modules[record.file] = device.load_kernels(image, record.file)
            function = self._modules[record.file].function(record.entry)
            function.allow_shared(record.shared_bytes)
            self._functions[record.symbol] = function

    def bind(self, launch: Launch, values: Sequence[float]) -> driver_launch.Launch:
        """A launch with its arguments' values (addresses, integers, floats)."""
        record = self.records.get(launch.kernel)
        if record is None:
            raise ArtifactError(
                f"launch {launch.label!r} names kernel {launch.kernel!r}, which is not listed",
                hint=AGAIN,
            )
        if launch.grid is None or len(values) != len(record.kinds):
            raise ArtifactError(
                f"launch {launch.label!r} of {launch.kernel!r} has grid {launch.grid} and "
                f"{len(values)} arguments; the kernel has {len(record.kinds)}",
                hint=AGAIN,
            )
        arguments = driver_launch.Arguments(record.kinds)
        arguments.set_all(values)
        return driver_launch.Launch(
            self._functions[launch.kernel],
            arguments,
            launch.grid,
            (record.threads, 1, 1),
            record.shared_bytes,
            programmatic=record.programmatic,
        )


def code_bytes(directory: Path, manifest: Manifest) -> int:
    """Bytes of all code objects; ArtifactError when one is missing."""
    try:
        return sum((directory / f).stat().st_size for f in {r.file for r in manifest.kernels})
    except OSError as error:
        raise ArtifactError(f"the artifact lacks kernels: {error}", hint=AGAIN) from None


def _read(path: Path) -> bytes:
    try:
        image = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}", hint=AGAIN) from None
    if not image.startswith(_ELF):  # hsaco and cubin are ELF files
        raise ArtifactError(
            f"{path} is damaged: its {len(image):,} bytes are no ELF file", hint=AGAIN
        )
    return image
