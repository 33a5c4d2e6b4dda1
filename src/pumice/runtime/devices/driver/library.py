"""A driver's table bound to its library."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, Protocol

from pumice.errors import DeviceError, OutOfMemoryError
from pumice.runtime.devices.driver.table import DriverTable, argument_types

_TEXT_ROLES = ("error_name", "error_text")
_HINTS = {
    "out_of_memory": "Free memory on the device (another process may hold it), or use a smaller "
    "context, batch or model.",
    "no_device": "The driver sees no device: check its own tool (nvidia-smi, rocminfo) and "
    "CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES.",
    "invalid_image": "The kernels were not made for this device: compile for its arch.",
    "other_architecture": "The kernels were not made for this device: compile for its arch.",
}


class Library(Protocol):
    """What ctypes.CDLL is, and what stands in for it: C functions as attributes."""

    def __getattr__(self, name: str) -> Any: ...


class Driver:
    """Calls roles of a driver; every status other than success becomes an exception that carries
    what was attempted and the driver's own name for the failure.

    explain: for a library that knows more than its status says, a text for the last failure or
    None. emulated: whether there is no card beneath.
    """

    def __init__(
        self,
        table: DriverTable,
        library: Library,
        *,
        explain: Callable[[], str | None] | None = None,
        emulated: bool = False,
    ) -> None:
        self.table, self.emulated = table, emulated
        self._explain = explain
        self.functions: dict[str, Any] = {}
        missing = []
        for role, symbol in table.symbols.items():
            try:
                function = getattr(library, symbol)
            except AttributeError:
                if role not in table.optional:
                    missing.append(symbol)
                continue
            function.argtypes = argument_types(role)
            function.restype = ctypes.c_char_p if role in _TEXT_ROLES else ctypes.c_int
            self.functions[role] = function
        if missing:
            raise DeviceError(
                f"the {table.api} driver lacks {', '.join(missing)}",
                hint="It is too old: update the driver.",
            )

    def has(self, role: str) -> bool:
        return role in self.functions

    def call(self, role: str, *arguments: Any, attempted: str) -> None:
        """Raises DeviceError or OutOfMemoryError; attempted: what the call was for, a phrase."""
        status = self.functions[role](*arguments)
        if status:
            raise self.error(status, role, attempted)

    def status(self, role: str, *arguments: Any) -> int:
        """The bare status, for calls whose failure is an answer."""
        return int(self.functions[role](*arguments))

    def error(self, status: int, role: str, attempted: str) -> DeviceError | OutOfMemoryError:
        """The exception for a status."""
        name, text = self.error_name(status), self._text(status, "error_text")
        symbol = self.table.symbols[role]
        message = f"{attempted} failed: {symbol} returned {name} ({status}: {text})"
        detail = self._explain() if self._explain else None
        if detail:
            message += f": {detail}"
        condition = {code: key for key, code in self.table.errors.items()}.get(status, "")
        kind = OutOfMemoryError if condition == "out_of_memory" else DeviceError
        return kind(message, hint=_HINTS.get(condition))

    def error_name(self, status: int) -> str:
        """The driver's name of a status, such as CUDA_ERROR_NO_DEVICE."""
        return self._text(status, "error_name")

    def _text(self, status: int, role: str) -> str:
        if self.has(role):
            text = self.functions[role](status)
        else:
            out = ctypes.c_char_p()
            self.functions[f"{role}_into"](status, ctypes.byref(out))
            text = out.value
        return text.decode() if text else "unknown error"


def load(table: DriverTable) -> Driver:
    """The driver that is installed; DeviceError says which files were looked for."""
    failures: dict[str, list[str]] = {}  # reason → files
    windows = sys.platform == "win32"
    for name in (n for n in table.libraries if n.endswith(".dll") == windows):
        try:
            return Driver(table, ctypes.CDLL(name))
        except OSError as error:
            failures.setdefault(str(error).removeprefix(f"{name}: "), []).append(name)
    tried = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in failures.items())
    raise DeviceError(
        f"the {table.api} driver cannot be loaded; tried {tried}",
        hint=f"To use a GPU, {table.install}.",
    )
