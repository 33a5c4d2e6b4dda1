"""Modules, their kernels, and launches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from pumice.emulator.hip import abi
from pumice.emulator.hip.executor import LoadedKernel
from pumice.emulator.hip.status import HipError, Status
from pumice.emulator.hip.work_calls import WorkCalls
from pumice.errors import ArtifactError, DeviceError, PumiceError, UnsupportedError

_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 3  # HIP_LAUNCH_PARAM_*
_MOST_X, _MOST_YZ, _MOST_THREADS, _BLOCK = (1 << 31) - 1, 1 << 16, (1 << 32) - 1, 1024


class Module:
    """A loaded code object."""

    def __init__(self, kernels: Any, variables: Any) -> None:
        self.kernels, self.variables = kernels, variables


class KernelCalls(WorkCalls):
    """hipModule*, hipFunc*."""

    def _hipModuleLoadData(self, out: int, image: int) -> None:
        data = _whole_elf(image)
        try:
            module = Module(*self.executor.load(data))
            self._variables.update(module.variables.values())
            self._new(module, out)
        except UnsupportedError as error:  # another architecture
            raise HipError(Status.NO_BINARY_FOR_GPU, error.message) from None
        except ArtifactError as error:
            raise HipError(Status.INVALID_IMAGE, error.message) from None

    def _hipModuleUnload(self, handle: int) -> None:
        module = self._get(handle, Module)
        del self._objects[handle]
        if self._lost is None:  # kernels of it may be on their way
            self._hipDeviceSynchronize()
        for address, _ in module.variables.values():
            self._variables.pop(address, None)
        self.executor.unload(module.kernels)

    def _hipModuleGetFunction(self, out: int, module: int, name: int) -> None:
        kernels = self._get(module, Module).kernels
        wanted = abi.read_text(name)
        if wanted not in kernels:
            raise HipError(Status.NOT_FOUND, f"there are {', '.join(kernels) or 'no kernels'}")
        self._new(kernels[wanted], out)

    def _hipModuleGetGlobal(self, address: int, nbytes: int, module: int, name: int) -> None:
        variables = self._get(module, Module).variables
        wanted = abi.read_text(name)
        if wanted not in variables:
            raise HipError(Status.NOT_FOUND, f"there are {', '.join(variables) or 'none'}")
        abi.write_pointer(address, variables[wanted][0])
        abi.write_size(nbytes, variables[wanted][1])

    def _hipFuncGetAttribute(self, out: int, attribute: int, function: int) -> None:
        kernel = self._get(function, LoadedKernel)
        values = {
            0: kernel.max_threads,
            1: kernel.shared_bytes,
            3: kernel.local_bytes,
            4: kernel.registers,
        }
        if attribute not in values:
            raise HipError(Status.INVALID_VALUE, f"function attribute {attribute} is not emulated")
        abi.write_int(out, values[attribute])

    def _hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(
        self, out: int, function: int, threads: int, shared: int
    ) -> None:
        kernel = self._get(function, LoadedKernel)
        if not 1 <= threads <= kernel.max_threads:
            raise HipError(Status.INVALID_VALUE, f"{threads} threads in a block of {kernel.name}")
        blocks = self.card.blocks_per_unit(threads, kernel.registers, kernel.shared_bytes + shared)
        abi.write_int(out, blocks)

    def _hipModuleLaunchCooperativeKernel(self, function: int, *rest: int) -> None:
        kernel = self._get(function, LoadedKernel)
        grid, block, shared = rest[0:3], rest[3:6], rest[6]
        self._validate(kernel, grid, block, shared, rest[8], 0)
        threads = block[0] * block[1] * block[2]
        fit = self.card.units * self.card.blocks_per_unit(
            threads, kernel.registers, kernel.shared_bytes + shared
        )
        if grid[0] * grid[1] * grid[2] > fit:
            raise HipError(
                Status.COOPERATIVE_LAUNCH_TOO_LARGE,
                f"{grid[0] * grid[1] * grid[2]} blocks of {kernel.name}; {fit} run at once",
            )
        self._put(kernel, grid, block, shared, rest[7], _gathered(kernel, rest[8]), together=True)

    def _hipModuleLaunchKernel(self, function: int, *rest: int) -> None:
        kernel = self._get(function, LoadedKernel)
        grid, block, shared, stream, parameters, extra = (
            rest[0:3], rest[3:6], rest[6], rest[7], rest[8], rest[9],
        )  # fmt: skip
        self._validate(kernel, grid, block, shared, parameters, extra)
        arguments = _packed(kernel, extra) if extra else _gathered(kernel, parameters)
        self._put(kernel, grid, block, shared, stream, arguments, together=False)

    def _validate(
        self,
        kernel: LoadedKernel,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        parameters: int,
        extra: int,
    ) -> None:
        """AMD's checks, in their order and with their codes (ROCm's clr, hip_module.cpp)."""
        threads = block[0] * block[1] * block[2]
        shape = f"grid {tuple(grid)}, block {tuple(block)}"
        if parameters and extra:
            raise HipError(Status.INVALID_VALUE, "arguments are given twice")
        if grid[0] > _MOST_X or grid[1] > _MOST_YZ or grid[2] > _MOST_YZ or min(*grid, *block) < 1:
            raise HipError(
                Status.INVALID_VALUE,
                f"{shape}; a grid has 1 to {_MOST_X:,} × {_MOST_YZ:,} × {_MOST_YZ:,} blocks",
            )
        if grid[0] * block[0] > _MOST_THREADS:
            raise HipError(
                Status.INVALID_CONFIGURATION, f"{shape}; at most {_MOST_THREADS:,} threads along x"
            )
        total = shared + kernel.shared_bytes
        if total > self.card.shared_bytes:
            raise HipError(
                Status.INVALID_VALUE,
                f"{total:,} bytes of LDS; a block has at most {self.card.shared_bytes:,}",
            )
        if threads > _BLOCK:
            raise HipError(
                Status.INVALID_VALUE, f"{shape}: {threads} threads in a block of at most {_BLOCK}"
            )
        if kernel.arguments and not (parameters or extra):
            raise HipError(Status.INVALID_VALUE, f"{kernel.name} takes arguments; none were given")
        if threads > kernel.max_threads:
            raise HipError(
                Status.LAUNCH_FAILURE,
                f"{shape}; {kernel.name} was compiled for at most {kernel.max_threads} threads",
            )

    def _put(
        self,
        kernel: LoadedKernel,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        stream: int,
        arguments: bytes,
        *,
        together: bool,
    ) -> None:
        def work() -> None:
            try:
                self.executor.launch(
                    kernel,
                    (grid[0], grid[1], grid[2]),
                    (block[0], block[1], block[2]),
                    shared,
                    arguments,
                    together=together,
                )
            except PumiceError as error:
                fault = isinstance(error, DeviceError)
                detail = f"kernel {kernel.name}: {error.message}"
                if fault and error.hint:  # the sanitizer knows more
                    detail += f" (rocm:sanitized-{self.card.arch} names the source line)"
                status = Status.ILLEGAL_ADDRESS if fault else Status.LAUNCH_FAILURE
                raise HipError(status, detail) from None

        self._stream(stream).put(work)


def _whole_elf(image: int) -> bytes:
    """An ELF file in memory; its section headers are its end. Anything else is INVALID_IMAGE."""
    head = ctypes.string_at(image, 64)
    if head[:4] != b"\x7fELF":
        raise HipError(Status.INVALID_IMAGE, "the image is not an ELF file")
    offset = int.from_bytes(head[40:48], "little")
    size, count = (int.from_bytes(head[at : at + 2], "little") for at in (58, 60))
    return ctypes.string_at(image, offset + size * count)


def _packed(kernel: LoadedKernel, extra: int) -> bytes:
    """Arguments from the `extra` list of a launch. A driver would read beyond a short buffer."""
    keys = [abi.read_pointer(extra + 16 * index) for index in range(3)]
    if keys != [_BUFFER_POINTER, _BUFFER_SIZE, _END]:
        raise HipError(
            Status.INVALID_VALUE,
            f"the launch's list begins with {keys}; a buffer, its size and the end are allowed",
        )
    pointer = abi.read_pointer(extra + 8)
    nbytes = ctypes.c_size_t.from_address(abi.read_pointer(extra + 24)).value
    if nbytes < kernel.argument_bytes:
        raise HipError(
            Status.INVALID_VALUE,
            f"{nbytes} bytes of arguments; {kernel.name} takes {kernel.argument_bytes}",
        )
    return ctypes.string_at(pointer, nbytes)


def _gathered(kernel: LoadedKernel, parameters: int) -> bytes:
    """Arguments from an array of pointers to them."""
    data = bytearray(kernel.argument_bytes)
    for index, (offset, nbytes) in enumerate(kernel.arguments):
        data[offset : offset + nbytes] = ctypes.string_at(
            abi.read_pointer(parameters + 8 * index), nbytes
        )
    return bytes(data)
