"""`--device`: which device a command is for."""

from __future__ import annotations

from pumice._version import __version__
from pumice.errors import DeviceError, UnsupportedError, UsageError

APIS = ("cpu", "rocm", "cuda", "vulkan", "metal", "opencl")
AVAILABLE = ("cpu",)


def parse_device(text: str) -> str:
    """The API that a specification (`auto`, or an API with an optional `:N`) means.

    UsageError: not of that form. UnsupportedError: an API that this version does not have.
    DeviceError: no device of that number.
    """
    api, colon, number = text.strip().lower().partition(":")
    if text == "auto":
        return "cpu"
    if api not in APIS or (colon and not number.isascii()) or (colon and not number.isdigit()):
        raise UsageError(
            f"device {text!r} is unknown; allowed: auto, {', '.join(APIS)}, each with :N or not",
            hint="`pumice doctor` shows the devices of this machine.",
        )
    if api not in AVAILABLE:
        raise UnsupportedError(
            f"device {text!r}: Pumice {__version__} cannot use {api} yet; it has "
            f"{', '.join(AVAILABLE)}",
            hint="Use --device cpu.",
        )
    if number and int(number) != 0:
        raise DeviceError(f"there is no device {text!r}: the CPU is one device, cpu:0")
    return api
