"""The emulator as the stand-in's executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from pumice.binary.amdgpu import Kernel, read_code_object
from pumice.emulator.emulator import Emulator, pack
from pumice.emulator.hip.cards import Card
from pumice.emulator.hip.executor import LoadedKernel
from pumice.emulator.report import LaunchReport
from pumice.errors import UnsupportedError

_SLACK = 1 << 30  # address space for code, arguments and guards between allocations
_OBJECT = 1  # STT_OBJECT


class Machine:
    """Runs code objects of one architecture.

    sanitize: faults of any kind fail the launch, also those that a real card would let pass (LDS
    read before it was written, races). observe: is given every launch's report (`LaunchReport`:
    instructions by class, traffic, conflicts), which then is measured.
    """

    def __init__(self, chosen: Card, *, sanitize: bool = False) -> None:
        self.emulator = Emulator(chosen.arch, capacity=chosen.memory_bytes + _SLACK)
        self.sanitize = sanitize
        self.observe: Callable[[LaunchReport], None] | None = None

    def allocate(self, nbytes: int) -> int:
        return self.emulator.allocate(nbytes)

    def free(self, address: int) -> None:
        self.emulator.free(address)

    def read(self, address: int, nbytes: int) -> npt.NDArray[np.uint8]:
        return self.emulator.memory.read(address, nbytes)

    def write(self, address: int, data: npt.NDArray[np.uint8]) -> None:
        self.emulator.memory.write(address, data)

    def load(
        self, image: bytes
    ) -> tuple[Mapping[str, LoadedKernel], Mapping[str, tuple[int, int]]]:
        """ArtifactError for a damaged image, UnsupportedError for another architecture's."""
        code = read_code_object(image)
        if code.arch != self.emulator.arch:
            raise UnsupportedError(
                f"the code object is for {code.arch}, the device is a {self.emulator.arch}"
            )
        module = self.emulator.load(code)
        kernels = {name: _loaded(kernel, (module, name)) for name, kernel in code.kernels.items()}
        variables = {
            name: (module.allocation + symbol.address, symbol.size)
            for name, symbol in code.elf.symbols.items()
            if symbol.kind == _OBJECT and name not in {k.symbol for k in code.kernels.values()}
        }
        return kernels, variables

    def unload(self, kernels: Mapping[str, LoadedKernel]) -> None:
        for module in {id(k.handle[0]): k.handle[0] for k in kernels.values()}.values():
            self.emulator.unload(module)

    def launch(
        self,
        kernel: LoadedKernel,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        arguments: bytes,
        *,
        together: bool = False,
    ) -> None:
        """KernelFaultError names the first fault, its source line, wave and lane."""
        module, name = kernel.handle
        data = bytearray(pack(module.kernel(name), [], grid, block))  # what callers don't pass
        data[: kernel.argument_bytes] = arguments[: kernel.argument_bytes]
        report = self.emulator.launch(
            kernel.handle,
            grid,
            block,
            bytes(data),
            lds_bytes=shared_bytes,
            sanitize=self.sanitize,
            measure=self.observe is not None,
            together=together,
        )
        if self.observe is not None:
            self.observe(report)
        if self.sanitize:
            report.check()


def _loaded(kernel: Kernel, handle: object) -> LoadedKernel:
    explicit = [a for a in kernel.arguments if not a.kind.startswith("hidden_")]
    return LoadedKernel(
        name=kernel.name,
        argument_bytes=max((a.offset + a.size for a in explicit), default=0),
        arguments=tuple((a.offset, a.size) for a in explicit),
        registers=kernel.vgprs,
        shared_bytes=kernel.lds_bytes,
        local_bytes=kernel.scratch_bytes,
        max_threads=kernel.max_workgroup,
        handle=handle,
    )
