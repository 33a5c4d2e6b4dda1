"""`--device`: which device a command is for."""

from __future__ import annotations

from pumice._version import __version__
from pumice.errors import DeviceError, UnsupportedError, UsageError

GPUS = ("rocm", "cuda")
LATER = ("vulkan", "metal", "opencl")
FORMS = (
    "auto, cpu, rocm, cuda, a GPU also with :NUMBER or :PCI-ID (rocm:1, cuda:0000:03:00.0), "
    "rocm:emulated-ARCH (rocm:emulated-gfx1100) or rocm:sanitized-ARCH, which also looks for races"
)


def parse_device(text: str) -> str:
    """The device's name as the runtime takes it: "auto", "cpu", or a GPU's.

    UsageError: not of an allowed form. UnsupportedError: an API that this version does not have.
    DeviceError: a second CPU. Whether there is such a GPU is not asked.
    """
    name = text.strip().lower()
    api, colon, rest = name.partition(":")
    if name == "auto":
        return "auto"
    if api in GPUS:
        from pumice.runtime.devices.driver.choose import parse

        try:
            parse(name)
        except UsageError:
            raise _unknown(text) from None
        return name
    if api not in ("cpu", *LATER) or (colon and not (rest.isascii() and rest.isdigit())):
        raise _unknown(text)
    if api in LATER:
        raise UnsupportedError(
            f"device {text!r}: Pumice {__version__} cannot use {api} yet; it has cpu, "
            f"{', '.join(GPUS)}",
            hint="Use --device cpu.",
        )
    if rest and int(rest) != 0:
        raise DeviceError(f"there is no device {text!r}: the CPU is one device, cpu:0")
    return "cpu"


def _unknown(text: str) -> UsageError:
    return UsageError(
        f"device {text!r} is unknown; allowed: {FORMS}",
        hint="`pumice doctor` shows the devices of this machine.",
    )


def is_gpu(device: str) -> bool:
    """Whether a parsed name means a GPU."""
    return device.partition(":")[0] in GPUS
