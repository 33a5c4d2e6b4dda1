"""A vendor's library of matrix products: where it is looked for, and its functions, bound."""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pumice.errors import DeviceError
from pumice.runtime.devices.blas import cublaslt, hipblaslt
from pumice.runtime.devices.blas.table import BlasTable, argument_types
from pumice.runtime.devices.driver.library import Library

TABLES: dict[str, BlasTable] = {"cuda": cublaslt.TABLE, "rocm": hipblaslt.TABLE}


class Blas:
    """Calls roles of a library; every status other than success becomes a DeviceError with the
    library's own name for it. A handle belongs to the device that was active when it was made.

    path: where the library is, for a person.
    """

    def __init__(self, table: BlasTable, library: Library, path: str) -> None:
        self.table, self.path = table, path
        self.functions: dict[str, Any] = {}
        missing = []
        for role, symbol in table.symbols.items():
            try:
                function = getattr(library, symbol)
            except AttributeError:
                missing.append(symbol)
                continue
            function.argtypes = argument_types(role)
            function.restype = ctypes.c_size_t if role == "version" else ctypes.c_int
            self.functions[role] = function
        if missing:
            raise DeviceError(f"{path} lacks {', '.join(missing)}")
        handle = ctypes.c_void_p()
        self.call("create", ctypes.byref(handle), attempted=f"starting {table.name}")
        self.handle = handle.value
        self._finalizer = weakref.finalize(self, self.functions["destroy"], self.handle)
        self.version = self._version()

    def __str__(self) -> str:
        return f"{self.table.name} {self.version} ({self.path})"

    def call(self, role: str, *arguments: Any, attempted: str) -> None:
        """Raises DeviceError; attempted: what the call was for, a phrase."""
        status = int(self.functions[role](*arguments))
        if status:
            raise self.error(status, role, attempted)

    def status(self, role: str, *arguments: Any) -> int:
        """The bare status, for calls whose failure is an answer."""
        return int(self.functions[role](*arguments))

    def error(self, status: int, role: str, attempted: str) -> DeviceError:
        """The exception for a status."""
        symbol, name = self.table.symbols[role], self.table.error_name(status)
        return DeviceError(
            f"{attempted} failed: {symbol} returned {name} ({status})",
            hint=f"`--vendor-blas never` compiles a model that runs without {self.table.name}.",
        )

    def _version(self) -> str:
        if "version" in self.functions:
            number = int(self.functions["version"]())
        else:
            out = ctypes.c_int()
            self.call(
                "version_into", self.handle, ctypes.byref(out),
                attempted=f"asking {self.table.name} for its version",
            )  # fmt: skip
            number = out.value
        major, minor = self.table.versions
        return f"{number // major}.{number % major // minor}.{number % minor}"


def candidates(
    table: BlasTable, homes: Sequence[Path] = (), path: Sequence[str] | None = None
) -> Iterator[str]:
    """File names to try, in order: of the loader's own path, then below `homes` (CUDA_HOME,
    ROCM_PATH), the usual folder, and Python's packages. path: sys.path, by default.

    An absolute one is a file that exists.
    """
    found = [Path(home) / part for home in homes for part in table.parts]
    usual = [Path(home) / part for home in table.homes for part in table.parts]
    entries = [Path(entry) for entry in (sys.path if path is None else path) if entry]
    packages = [entry / part for entry in entries for part in table.packages]
    seen: set[str] = set()
    for name in table.libraries:
        places = [str(folder / name) for folder in found if (folder / name).is_file()]
        places.append(name)
        places += [str(f / name) for f in (*usual, *packages) if (f / name).is_file()]
        for place in places:
            if place not in seen:
                seen.add(place)
                yield place


def find(
    table: BlasTable,
    homes: Sequence[Path] = (),
    opener: Callable[[str], Library] = ctypes.CDLL,
) -> Blas:
    """The first library that can be opened and started on the active device; DeviceError says what
    stood in the way of each that was tried.
    """
    reasons: list[str] = []
    for name in candidates(table, homes):
        try:
            library = opener(name)
        except OSError as error:
            text = str(error).removeprefix(f"{name}: ")
            absent = "/" not in name and "cannot open shared object file" in text
            reasons.append(f"{name}: {'not found' if absent else text}")
            continue
        try:
            return Blas(table, library, name)
        except DeviceError as error:
            reasons.append(f"{name}: {error.message}")
    raise DeviceError(
        f"{table.name} cannot be used; tried {'; '.join(reasons)}",
        hint=f"To have it, {table.install}.",
    )
