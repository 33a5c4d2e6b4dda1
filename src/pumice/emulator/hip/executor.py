"""What the stand-in needs beneath it: memory, and something that runs kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel of a loaded code object. arguments: (offset, bytes) of those a caller passes.

    registers: VGPRs a lane. local_bytes: scratch a lane. handle: the executor's own.
    """

    name: str
    argument_bytes: int
    arguments: tuple[tuple[int, int], ...]
    registers: int
    shared_bytes: int
    local_bytes: int
    max_threads: int
    handle: Any = None


class Executor(Protocol):
    """Device memory and kernels. Faults raise exceptions of pumice.errors."""

    def allocate(self, nbytes: int) -> int:
        """An address, aligned to 256."""

    def free(self, address: int) -> None: ...

    def read(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """A copy."""

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None: ...

    def load(
        self, image: bytes
    ) -> tuple[Mapping[str, LoadedKernel], Mapping[str, tuple[int, int]]]:
        """A code object's kernels, and its global variables as (address, bytes)."""

    def unload(self, kernels: Mapping[str, LoadedKernel]) -> None:
        """Gives back what a code object takes, by its kernels as `load` gave them."""

    def launch(
        self,
        kernel: LoadedKernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: bytes,
        *,
        together: bool,
    ) -> None:
        """Runs a kernel to its end. grid: blocks; arguments: what a caller passes; together: blocks
        may wait for each other.
        """
