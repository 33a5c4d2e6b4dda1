"""Compiles favourite configurations for GPUs that are not there, and reads what came out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.operators.base import OperatorSpec
from pumice.operators.triton.build import Binary, build_plan
from pumice.operators.triton.plan import Config, Problem, TensorSpec, TritonKernel
from pumice.targets import Target


def spills(binary: Binary) -> int:
    """Registers that did not fit and bytes of private memory."""
    return binary.resources.spilled + binary.resources.scratch_bytes


def problem_of(
    spec: OperatorSpec, attrs: Mapping[str, Any], inputs: Mapping[str, TensorSpec]
) -> Problem:
    assert spec.output_specs is not None
    return Problem(spec.name, {**inputs, **spec.output_specs(attrs, inputs)}, attrs)


def compiled(
    kernel: TritonKernel, problem: Problem, target: Target, config: Config | None = None
) -> list[Binary]:
    """Binaries of the favourite (or given) configuration, within shared memory, nothing spilled."""
    reason = kernel.supports(problem, target)
    assert reason is None, reason
    config = kernel.configs(problem, target)[0] if config is None else config
    binaries = build_plan(problem, kernel.plan(problem, target, config), target)
    for binary in binaries:
        assert binary.shared_bytes <= target.shared_bytes, (config, binary.shared_bytes)
        assert binary.threads <= 1024
        assert spills(binary) == 0, (kernel.name, dict(config), target.name, binary.resources)
    return binaries
