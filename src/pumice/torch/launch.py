"""Plans of Triton kernels over PyTorch tensors.

A plan is bound once: kernels compiled (or found in Triton's cache), arguments laid out. A call then
fills in addresses, on PyTorch's current stream, so it can be captured in a CUDA graph.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pumice.errors import DeviceError, UnsupportedError
from pumice.operators.triton.build import Binary, binary_key, build
from pumice.operators.triton.plan import Plan, Problem, TensorSpec
from pumice.targets import GPU_TARGETS, Target, get_target

_binaries: dict[Any, Binary] = {}


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype's name in `pumice.dtypes`."""
    return str(dtype).removeprefix("torch.")


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """A tensor's shape, dtype, strides and alignment."""
    spec = TensorSpec(
        tuple(tensor.shape),
        dtype_name(tensor.dtype),
        aligned=tensor.data_ptr() % 16 == 0,
    )
    if tensor.is_contiguous():
        return spec
    return TensorSpec(spec.shape, spec.dtype, tuple(tensor.stride()), spec.aligned)


@functools.cache
def architecture_of(index: int) -> Target:
    """The target of a GPU that PyTorch sees. UnsupportedError lists the known architectures."""
    if torch.version.hip is not None:
        name = torch.cuda.get_device_properties(index).gcnArchName.split(":")[0]
    else:
        major, minor = torch.cuda.get_device_capability(index)
        name = f"sm_{major}{minor}"
    if name not in (target.name for target in GPU_TARGETS):
        raise UnsupportedError(
            f"GPU {index} is {torch.cuda.get_device_name(index)} ({name}); known architectures: "
            + ", ".join(target.name for target in GPU_TARGETS)
        )
    return get_target(name)


def _lend(buffer: torch.Tensor, run: Any, *values: Any) -> None:
    """Launches with a buffer for what the kernel keeps in memory, in a context of its own."""
    import triton

    triton.set_allocator(lambda size, alignment, stream: buffer)
    run(*values)


class BoundPlan:
    """A plan's kernels with everything but the addresses. binaries: of its launches, where they
    are compiled already."""

    def __init__(
        self, problem: Problem, plan: Plan, target: Target, binaries: Sequence[Binary] = ()
    ) -> None:
        tensors = {**problem.tensors, **plan.workspaces}
        self.plan = plan
        self._workspaces = {
            name: (spec.shape, getattr(torch, spec.dtype), name in plan.zeroed)
            for name, spec in plan.workspaces.items()
        }
        self._launches: list[
            tuple[Any, tuple[int, int, int], list[Any], list[tuple[int, str]], str]
        ] = []
        for index, launch in enumerate(plan.launches):
            key = binary_key(launch, tensors, target)
            if key not in _binaries:
                _binaries[key] = binaries[index] if binaries else build(launch, tensors, target)
            values = {**launch.constants, **launch.arguments}
            row = [values[name] for name in launch.kernel.arg_names]
            holes = [
                (index, value)
                for index, (name, value) in enumerate(
                    zip(launch.kernel.arg_names, row, strict=True)
                )
                if name in launch.arguments and isinstance(value, str)
            ]
            self._launches.append(
                (_binaries[key].compiled, launch.grid, row, holes, launch.scratch)
            )

    def restored(self, device: torch.device | str) -> dict[str, torch.Tensor]:
        """Zeros for the workspaces that the plan leaves as it found them. A caller whose calls
        follow each other may give them with every call's tensors; without them a call makes its
        own."""
        return {
            name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype), device=device)
            for name, spec in self.plan.workspaces.items()
            if name in self.plan.restored
        }

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Launches over the tensors on the current stream; workspaces come from PyTorch's
        allocator. DeviceError when the driver refuses."""
        buffers = tensors
        if self._workspaces:
            device = next(iter(tensors.values())).device
            buffers = dict(tensors)
            for name, (shape, dtype, zero) in self._workspaces.items():
                if name in self.plan.restored and name in tensors:
                    continue
                make = torch.zeros if zero else torch.empty
                buffers[name] = make(shape, dtype=dtype, device=device)
        stream = torch.cuda.current_stream().cuda_stream
        for compiled, grid, row, holes, scratch in self._launches:
            arguments = list(row)
            for index, name in holes:
                arguments[index] = buffers[name].data_ptr()
            try:
                run = compiled.run  # first: it loads the binary, so that there is a function
                values = (
                    *grid, stream, compiled.function, compiled.packed_metadata,
                    None, None, None, *arguments,
                )  # fmt: skip
                if scratch:
                    contextvars.copy_context().run(_lend, buffers[scratch], run, *values)
                else:
                    run(*values)
            except Exception as error:
                raise DeviceError(f"kernel {compiled.name} cannot be launched: {error}") from error
