"""Runs a case of a spec as its compiled AMD code on the emulated GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from triton_harness import make_problem, poisoned, relative_error

from pumice.dtypes import numpy_dtype
from pumice.emulator.emulator import Emulator
from pumice.operators.base import OperatorSpec
from pumice.operators.triton.build import build_plan
from pumice.operators.triton.plan import Plan, Problem, TritonKernel
from pumice.targets import Target


def check_emulated(
    spec: OperatorSpec,
    kernel: TritonKernel,
    attrs: Mapping[str, Any],
    inputs: Mapping[str, np.ndarray],
    target: Target,
) -> None:
    """Outputs within tolerance, and no access out of bounds, race or read of what nobody wrote."""
    problem = make_problem(spec, attrs, inputs)
    plan = kernel.plan(problem, target, kernel.configs(problem, target)[0])
    emulator = Emulator(target.arch)
    arrays = {n: inputs[n] if n in inputs else poisoned(s) for n, s in problem.tensors.items()}
    addresses = {n: emulator.upload(np.ascontiguousarray(a)) for n, a in arrays.items()}
    launch_emulated(emulator, problem, plan, addresses, target)
    for name, expected in spec.reference(attrs, inputs).items():
        dtype = numpy_dtype(problem[name].dtype)
        got = emulator.download(addresses[name], expected.shape, dtype)
        assert relative_error(got, expected) <= spec.tolerance[dtype.name], name


def launch_emulated(
    emulator: Emulator,
    problem: Problem,
    plan: Plan,
    addresses: Mapping[str, int],
    target: Target,
) -> None:
    """The plan's launches over tensors that lie in the emulated memory, without a fault."""
    addresses = dict(addresses)
    for name, tensor in plan.workspaces.items():
        zero = name in plan.zeroed
        addresses[name] = emulator.upload(
            np.zeros(tensor.shape, numpy_dtype(tensor.dtype)) if zero else poisoned(tensor)
        )
    for binary, launch in zip(build_plan(problem, plan, target), plan.launches, strict=True):
        module = emulator.load(binary.code)
        values = [launch.arguments[name] for name, _ in binary.parameters]
        report = emulator.launch(
            (module, binary.symbol),
            launch.grid,
            (binary.threads, 1, 1),
            [addresses[v] if isinstance(v, str) else v for v in values],
            lds_bytes=binary.shared_bytes,
        )
        # A division's intermediate NaN is mended by its last instruction (v_div_fixup).
        faults = [str(f) for f in report.faults if "nan-from-infinity" not in str(f)]
        assert faults == []
