"""Runs plans of Triton kernels on an emulated AMD GPU: compiled ahead of time, then executed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.emulator.emulator import Emulator
from pumice.operators.base import OperatorSpec
from pumice.operators.triton.build import build
from pumice.operators.triton.plan import Config, Problem, TensorSpec, TritonKernel, make_problem
from pumice.targets import Target


def problem_of(
    spec: OperatorSpec, attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Problem:
    given = {name: TensorSpec(array.shape, array.dtype.name) for name, array in inputs.items()}
    return make_problem(spec, attrs, given)


def poisoned(spec: TensorSpec) -> np.ndarray:
    """NaN where the type has it, else the largest value."""
    dtype = numpy_dtype(spec.dtype)
    if dtype.kind in "iu":
        return np.full(spec.shape, np.iinfo(dtype).max, dtype)
    return np.full(spec.shape, np.nan, np.float32).astype(dtype)


def emulate(
    spec: OperatorSpec,
    kernel: TritonKernel,
    attrs: Mapping[str, Any],
    inputs: Mapping[str, np.ndarray],
    target: Target,
    config: Config | None = None,
) -> dict[str, np.ndarray]:
    """Outputs of a case. KernelFaultError when the sanitizer finds a fault.

    Every tensor is device memory of exactly its size; outputs and workspaces start poisoned.
    """
    problem = problem_of(spec, attrs, inputs)
    config = kernel.configs(problem, target)[0] if config is None else config
    plan = kernel.plan(problem, target, config)
    tensors = {**problem.tensors, **plan.workspaces}
    gpu = Emulator(target.arch, capacity=1 << 28)
    places = {}
    for name, tensor in tensors.items():
        if name in inputs:
            places[name] = gpu.upload(inputs[name])
        elif name in plan.zeroed:
            places[name] = gpu.upload(np.zeros(tensor.shape, numpy_dtype(tensor.dtype)))
        else:
            places[name] = gpu.upload(poisoned(tensor))
    for launch in plan.launches:
        binary = build(launch, tensors, target)
        module = gpu.load(binary.code)
        values: list[int | float] = []
        for name, kind in binary.parameters:
            value = launch.arguments[name]
            if isinstance(value, str):
                values.append(places[value])
            else:
                values.append(float(value) if kind == "fp32" else int(value))
        gpu.launch(
            (module, binary.symbol), launch.grid, (binary.threads,), values,
            lds_bytes=binary.shared_bytes, measure=False,
        ).check()  # fmt: skip
    assert spec.output_specs is not None
    made = spec.output_specs(attrs, {name: problem[name] for name in inputs})
    return {
        name: gpu.download(places[name], tensors[name].shape, numpy_dtype(tensors[name].dtype))
        for name in made
    }
