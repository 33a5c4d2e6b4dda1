"""Runs every case of an operator's spec through its Triton kernels, interpreted, and compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from triton_harness import make_problem, relative_error, run_case

from pumice.operators.base import OperatorSpec
from pumice.operators.registry import triton_kernels_of
from pumice.operators.triton.plan import Config, Problem, TritonKernel
from pumice.targets import Target

SEED = 7


def in_gluon(kernel: TritonKernel, problem: Problem, target: Target) -> bool:
    """Whether a kernel that takes the problem is written in Gluon."""
    plan = kernel.plan(problem, target, kernel.configs(problem, target)[0])
    return any(launch.kernel.is_gluon() for launch in plan.launches)


def runs(
    spec: OperatorSpec, targets: tuple[Target, ...]
) -> Iterator[tuple[str, TritonKernel, dict[str, Any], dict[str, np.ndarray], Target]]:
    """(label, kernel, attrs, inputs, target) of each case that a kernel takes on the first of the
    targets that has what the case needs. Triton's interpreter knows no Gluon."""
    for kernel in triton_kernels_of(spec.name):
        for index, (attrs, inputs) in enumerate(spec.cases(np.random.default_rng(SEED))):
            for target in targets:
                problem = make_problem(spec, attrs, inputs)
                if kernel.supports(problem, target) is None:
                    if in_gluon(kernel, problem, target):
                        break
                    shapes = ",".join("x".join(map(str, a.shape)) for a in inputs.values())
                    yield f"{kernel.name}-{index}-{shapes}", kernel, attrs, inputs, target
                    break


def check(
    spec: OperatorSpec,
    kernel: TritonKernel,
    attrs: Mapping[str, Any],
    inputs: Mapping[str, np.ndarray],
    target: Target,
    config: Config | None = None,
) -> dict[str, np.ndarray]:
    """Outputs within the spec's tolerance of the reference; gives them back."""
    got = run_case(spec, kernel, attrs, inputs, target, config)
    expected = spec.reference(attrs, inputs)
    assert set(got) == set(expected)
    for name, array in expected.items():
        assert got[name].dtype == array.dtype, (name, got[name].dtype, array.dtype)
        error = relative_error(got[name], array)
        limit = spec.tolerance[array.dtype.name]
        assert error <= limit, f"{name}: {error:.2e} > {limit:.0e}"
    return got
