"""Every exception that Pumice raises on purpose.

    PumiceError                     exit status 1
    ├── UsageError                  2   an argument is not allowed (temperature -1, unknown device)
    │   └── GrammarError            2   a grammar for the output is wrong or cannot be enforced
    ├── ModelFileError              3   a file is damaged, truncated, or not what it claims to be
    │   └── WeightMismatchError     3   tensors missing, extra or misshapen for the architecture
    ├── UnsupportedError            4   valid, but not something Pumice can run
    │   └── UnimplementedInstructionError 4 the emulator lacks a GPU instruction
    ├── ContextLengthError          5   prompt (plus output) longer than the context
    ├── OutOfMemoryError            6   the need is larger than what there is
    ├── StorageError                7   disk full, directory read-only, download failed
    ├── CompileError                8   a compiler phase failed
    ├── ArtifactError               9   an artifact is damaged or was made for something else
    ├── DeviceError                 10  a device is missing or failed
    │   └── KernelFaultError        10  a kernel read or wrote where it must not, or raced
    └── UnavailableError            11  not now: what was asked for is allowed
        ├── QueueFullError          11  too many requests wait already
        └── EngineClosedError       11  the engine admits nothing any more

A message says what failed, the value received, what is allowed, and the next step (`hint`).
"""

from __future__ import annotations


class PumiceError(Exception):
    """Base class. `hint` is the next step for a person; the CLI prints it on a line of its own."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\n{self.hint}"


class UsageError(PumiceError, ValueError):
    """An argument's value is not allowed."""

    exit_code = 2


class GrammarError(UsageError):
    """A grammar for the output is wrong, or holds what cannot be enforced.

    `where` is the offending property: a JSON pointer into a schema, else "".
    """

    def __init__(self, message: str, *, where: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.where = where


class ModelFileError(PumiceError):
    """A model file is damaged, truncated or not what it claims to be."""

    exit_code = 3


class WeightMismatchError(ModelFileError):
    """Tensors are missing, extra or misshapen for the architecture."""


class UnsupportedError(PumiceError):
    """The input is valid, but Pumice cannot run it."""

    exit_code = 4


class UnimplementedInstructionError(UnsupportedError):
    """A GPU instruction, named with its encoding and kernel, that the emulator does not execute."""


class ContextLengthError(PumiceError, ValueError):
    """A prompt does not fit the context."""

    exit_code = 5


class OutOfMemoryError(PumiceError, MemoryError):
    """More memory is needed than there is."""

    exit_code = 6


class StorageError(PumiceError, OSError):
    """The disk is full, a directory cannot be written, or a download failed."""

    exit_code = 7

    def __str__(self) -> str:
        return PumiceError.__str__(self)


class CompileError(PumiceError):
    """A compiler phase failed."""

    exit_code = 8


class ArtifactError(PumiceError):
    """An artifact is damaged, or was made for another device or version."""

    exit_code = 9


class DeviceError(PumiceError):
    """A device is missing or failed."""

    exit_code = 10


class KernelFaultError(DeviceError):
    """A kernel touched memory that is not its own, or its waves raced or disagreed at a barrier."""


class UnavailableError(PumiceError):
    """The request is allowed, but cannot be taken now."""

    exit_code = 11


class QueueFullError(UnavailableError):
    """As many requests wait already as may: `waiting` of `bound`."""

    def __init__(self, waiting: int, bound: int) -> None:
        super().__init__(
            f"{waiting:,} requests wait already; {bound:,} may",
            hint="Try again later, or let more wait (max_waiting).",
        )
        self.waiting = waiting
        self.bound = bound


class EngineClosedError(UnavailableError):
    """The engine is closed or about to be, and admits nothing any more."""
