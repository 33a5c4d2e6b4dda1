"""Runs plans of Triton kernels through a driver-level device: compiled ahead of time, loaded,
launched. No PyTorch.

The device may be an emulated card: then AMD's machine code is what computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.triton.build import Binary, binary_key, build
from pumice.operators.triton.plan import (
    Config,
    Plan,
    Problem,
    TensorSpec,
    TritonKernel,
    make_problem,
)
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.launch import Arguments, Function, Launch
from pumice.runtime.devices.driver.memory import DeviceBuffer
from pumice.targets import Target

_KINDS = {"i1": "int32", "i32": "int32", "i64": "int64", "fp32": "float32", "fp64": "float64"}


def poisoned(spec: TensorSpec) -> np.ndarray:
    """NaN where the type has it, else the largest value."""
    dtype = numpy_dtype(spec.dtype)
    if dtype.kind in "iu":
        return np.full(spec.shape, np.iinfo(dtype).max, dtype)
    return np.full(spec.shape, np.nan, np.float32).astype(dtype)


def problem_of(
    spec: OperatorSpec, attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Problem:
    """The problem of a case."""
    given = {name: TensorSpec(array.shape, array.dtype.name) for name, array in inputs.items()}
    return make_problem(spec, attrs, given)


class Runner:
    """Compiled kernels are kept, and loaded once."""

    def __init__(self, device: DriverDevice, target: Target) -> None:
        self.device, self.target = device, target
        self.stream = device.stream()
        self.binaries: dict[Any, tuple[Binary, Function]] = {}
        self.last: list[Binary] = []  # the kernels of the last case

    def _kernel(self, launch: Any, tensors: Mapping[str, Any]) -> tuple[Binary, Function]:
        key = binary_key(launch, tensors, self.target)
        if key not in self.binaries:
            binary = build(launch, tensors, self.target)
            module = self.device.load_kernels(binary.code, binary.symbol)
            self.binaries[key] = (binary, module.function(binary.symbol))
        return self.binaries[key]

    def run(
        self, problem: Problem, plan: Plan, arrays: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """All tensors afterwards. arrays: their contents before."""
        contents = dict(arrays)
        for name, spec in plan.workspaces.items():
            zero = name in plan.zeroed
            contents[name] = (
                np.zeros(spec.shape, numpy_dtype(spec.dtype)) if zero else poisoned(spec)
            )
        buffers: dict[str, DeviceBuffer] = {}
        for name, array in contents.items():
            buffers[name] = self.device.allocate(max(1, array.nbytes))
            if array.nbytes:
                self.device.upload(buffers[name].address, np.ascontiguousarray(array), self.stream)
        tensors = {**problem.tensors, **plan.workspaces}
        self.last = []
        for launch in plan.launches:
            binary, function = self._kernel(launch, tensors)
            self.last.append(binary)
            # Two pointers follow the kernel's own parameters: scratch memory and a profiler's.
            kinds = [_KINDS.get(kind, "pointer") for _, kind in binary.parameters]
            arguments = Arguments([*kinds, "pointer", "pointer"])
            values = [launch.arguments[name] for name, _ in binary.parameters]
            addresses = [buffers[v].address if isinstance(v, str) else v for v in values]
            scratch = buffers[launch.scratch].address if launch.scratch else 0
            arguments.set_all([*addresses, scratch, 0])
            block = (binary.threads, 1, 1)
            function.allow_shared(binary.shared_bytes)
            Launch(function, arguments, launch.grid, block, binary.shared_bytes).issue(self.stream)
        self.stream.synchronize()
        return {
            name: self.device.read(buffers[name].address, array.shape, array.dtype)
            if array.nbytes
            else array
            for name, array in arrays.items()
        }

    def case(
        self,
        spec: OperatorSpec,
        kernel: TritonKernel,
        attrs: Mapping[str, Any],
        inputs: Mapping[str, np.ndarray],
        config: Config | None = None,
    ) -> dict[str, np.ndarray]:
        """Outputs of a spec's case; they start poisoned unless they are inputs as well."""
        problem = problem_of(spec, attrs, inputs)
        config = kernel.configs(problem, self.target)[0] if config is None else config
        arrays = {
            name: inputs[name] if name in inputs else poisoned(tensor)
            for name, tensor in problem.tensors.items()
        }
        done = self.run(problem, kernel.plan(problem, self.target, config), arrays)
        assert spec.output_specs is not None
        given = {name: problem[name] for name in inputs}
        return {name: done[name] for name in spec.output_specs(attrs, given)}
