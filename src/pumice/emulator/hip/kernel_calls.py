"""Modules, their kernels, and launches."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

from pumice.emulator.hip import abi
from pumice.emulator.hip.executor import LoadedKernel
from pumice.emulator.hip.status import HipError, Status
from pumice.emulator.hip.work_calls import WorkCalls
from pumice.errors import ArtifactError, DeviceError, PumiceError, UnsupportedError

_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 3  # HIP_LAUNCH_PARAM_*


class Module:
    """A loaded code object."""

    def __init__(self, kernels: Any, variables: Any) -> None:
        self.kernels, self.variables = kernels, variables


class KernelCalls(WorkCalls):
    """hipModule*, hipFunc*."""

    def _hipModuleLoadData(self, out: int, image: int) -> None:
        data = _whole_elf(image)
        try:
            self._new(Module(*self.executor.load(data)), out)
        except UnsupportedError as error:  # another architecture
            raise HipError(Status.NO_BINARY_FOR_GPU, error.message) from None
        except ArtifactError as error:
            raise HipError(Status.INVALID_IMAGE, error.message) from None

    def _hipModuleUnload(self, handle: int) -> None:
        module = self._get(handle, Module)
        del self._objects[handle]
        if self._lost is None:  # kernels of it may be on their way
            self._hipDeviceSynchronize()
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
        raise HipError(
            Status.NOT_SUPPORTED, "the emulator runs blocks one after another, not all at once"
        )

    def _hipModuleLaunchKernel(self, function: int, *rest: int) -> None:
        kernel = self._get(function, LoadedKernel)
        grid, block, shared, stream, parameters, extra = (
            rest[0:3], rest[3:6], rest[6], rest[7], rest[8], rest[9],
        )  # fmt: skip
        threads = block[0] * block[1] * block[2]
        if min(*grid, *block) < 1 or threads > kernel.max_threads:
            raise HipError(
                Status.INVALID_CONFIGURATION,
                f"grid {grid}, block {block}; a block of {kernel.name} has 1 to "
                f"{kernel.max_threads} threads",
            )
        if shared + kernel.shared_bytes > self.card.shared_bytes:
            raise HipError(
                Status.INVALID_CONFIGURATION,
                f"{shared + kernel.shared_bytes} bytes of LDS; {self.card.shared_bytes} are there",
            )
        arguments = _packed(kernel, extra) if extra else _gathered(kernel, parameters)

        def work() -> None:
            try:
                self.executor.launch(
                    kernel,
                    (grid[0], grid[1], grid[2]),
                    (block[0], block[1], block[2]),
                    shared,
                    arguments,
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
    """Arguments from the `extra` list of a launch."""
    pointer = nbytes = 0
    for at in itertools.count(extra, 16):
        key = abi.read_pointer(at)
        if key == _END:
            break
        value = abi.read_pointer(at + 8)
        if key == _BUFFER_POINTER:
            pointer = value
        elif key == _BUFFER_SIZE:
            nbytes = ctypes.c_size_t.from_address(value).value
        else:
            raise HipError(Status.INVALID_VALUE, f"launch parameter {key}")
    if nbytes < kernel.argument_bytes:
        raise HipError(
            Status.INVALID_VALUE,
            f"{nbytes} bytes of arguments; {kernel.name} takes {kernel.argument_bytes}",
        )
    return ctypes.string_at(pointer, nbytes)


def _gathered(kernel: LoadedKernel, parameters: int) -> bytes:
    """Arguments from an array of pointers to them."""
    if not parameters and kernel.arguments:
        raise HipError(Status.INVALID_VALUE, f"{kernel.name} takes arguments; none were given")
    data = bytearray(kernel.argument_bytes)
    for index, (offset, nbytes) in enumerate(kernel.arguments):
        data[offset : offset + nbytes] = ctypes.string_at(
            abi.read_pointer(parameters + 8 * index), nbytes
        )
    return bytes(data)
