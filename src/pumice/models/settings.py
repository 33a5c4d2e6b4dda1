"""Reading settings so that none is overlooked: taken, known to be harmless, or an error."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from pumice.errors import ModelFileError, UnsupportedError

_LARGEST = 2**31 - 1
_MOST_LAYERS = 4096


class Settings:
    """Keys of a config file. `where` names the file in messages; `prefix` precedes every key."""

    def __init__(self, data: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self.data = data
        self.where = where
        self.prefix = prefix
        self.taken: set[str] = set()

    def take(self, name: str, default: Any = None) -> Any:
        """The value, or `default` where it is absent or null."""
        key = self.prefix + name
        self.taken.add(key)
        value = self.data.get(key)
        return default if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; ModelFileError when it is absent without a default, or something else."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value % 1:
            raise self._wrong(name, value, "a whole number")
        if abs(value) > _LARGEST:
            raise self._wrong(name, value, f"at most {_LARGEST}")
        return int(value)

    def layers(self, name: str) -> int:
        """The number of layers, bounded before anything is made for each."""
        value = self.integer(name)
        if not 1 <= value <= _MOST_LAYERS:
            raise self._wrong(name, value, f"1 to {_MOST_LAYERS}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number."""
        value = self._required(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "a number")
        if not math.isfinite(value):
            raise self._wrong(name, value, "finite")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def only(self, name: str, *allowed: Any) -> None:
        """UnsupportedError unless the value is absent or one of `allowed`."""
        value = self.take(name)
        if value is not None and value not in allowed:
            shown = " or ".join(repr(a) for a in allowed)
            raise UnsupportedError(
                f"{self.where}: {self.prefix}{name} is {value!r:.80}; supported: {shown}"
            )

    def finish(self, harmless: Collection[str] = ()) -> None:
        """UnsupportedError for every key that was neither taken nor is harmless nor is empty."""
        unknown = {
            key: value
            for key, value in self.data.items()
            if key.startswith(self.prefix)
            and key not in self.taken
            and key.removeprefix(self.prefix) not in harmless
            and not _empty(value)
        }
        if unknown:
            listed = ", ".join(f"{key} = {value!r:.80}" for key, value in sorted(unknown.items()))
            raise UnsupportedError(
                f"{self.where}: settings that may change what the model computes are not known: "
                f"{listed}",
                hint="Remove them only if they are known to have no effect.",
            )

    def _required(self, name: str, default: Any) -> Any:
        value = self.take(name, default)
        if value is None:
            raise ModelFileError(f"{self.where}: {self.prefix}{name} is missing")
        return value

    def _wrong(self, name: str, value: Any, wanted: str) -> ModelFileError:
        return ModelFileError(
            f"{self.where}: {self.prefix}{name} is {value!r:.80}; it must be {wanted}"
        )


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple | dict | str) and not value)
