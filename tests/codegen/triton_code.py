"""Compiles favourite configurations for GPUs that are not there, and reads what came out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton

from pumice import targets
from pumice.operators.base import OperatorSpec
from pumice.operators.triton.build import Binary
from pumice.operators.triton.plan import Config, Problem, TensorSpec, TritonKernel
from pumice.targets import Target, get_target
from pumice.tuning.gpu import GpuChoice
from pumice.tuning.settle import compile_choice

FAVOURITES_OF = "3.6."  # the version that kernels were measured with: the first of a list is good
# Of the generation of another, with fewer registers or other figures: code that differs in little.
RELATIVES = tuple(get_target(n) for n in ("gfx1101", "gfx1102", "gfx1103", "gfx1150"))
GPU_TARGETS = tuple(t for t in targets.GPU_TARGETS if t not in RELATIVES)
ROCM_TARGETS = tuple(t for t in targets.ROCM_TARGETS if t not in RELATIVES)
AS_IT_IS = triton.__version__.startswith(FAVOURITES_OF)


def spills(binary: Binary) -> int:
    """Registers that did not fit and bytes of private memory."""
    return binary.resources.spilled + binary.resources.scratch_bytes


def favourite(
    kernel: TritonKernel, problem: Problem, target: Target, config: Config | None
) -> tuple[list[Binary], Config]:
    """What would be shipped without a measured row, compiled."""
    config = kernel.configs(problem, target)[0] if config is None else config
    choice = GpuChoice(kernel.name, kernel, config, "", measured=AS_IT_IS)
    choice, binaries = compile_choice(problem, target, choice)
    return binaries, choice.config


def problem_of(
    spec: OperatorSpec, attrs: Mapping[str, Any], inputs: Mapping[str, TensorSpec]
) -> Problem:
    assert spec.output_specs is not None
    return Problem(spec.name, {**inputs, **spec.output_specs(attrs, inputs)}, attrs)


def compiled(
    kernel: TritonKernel, problem: Problem, target: Target, config: Config | None = None
) -> list[Binary]:
    """Binaries of the favourite (or given) configuration, within shared memory, nothing spilled.
    Favourites are chosen with FAVOURITES_OF of Triton; with others it is the first that fits."""
    reason = kernel.supports(problem, target)
    assert reason is None, reason
    binaries, config = favourite(kernel, problem, target, config)
    for binary in binaries:
        assert binary.shared_bytes <= target.shared_bytes, (config, binary.shared_bytes)
        assert binary.threads <= 1024
        assert spills(binary) == 0, (kernel.name, dict(config), target.name, binary.resources)
    return binaries
