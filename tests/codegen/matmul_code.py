"""Compiles plans of matrix products for GPUs that are not there, and judges what came out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from triton_code import favourite

from pumice.operators.base import OperatorSpec
from pumice.operators.triton.build import Binary
from pumice.operators.triton.plan import Config, Problem, TensorSpec, TritonKernel
from pumice.targets import Target

# What the assembly calls an instruction of the matrix unit.
_MATRIX = {
    "mfma": "v_mfma_", "wmma": "v_wmma_", "mma": "mma.sync", "wgmma": "wgmma.mma_async",
    "tcgen05": "tcgen05.mma",
}  # fmt: skip


def problem_of(
    spec: OperatorSpec, attrs: Mapping[str, Any], inputs: Mapping[str, TensorSpec]
) -> Problem:
    assert spec.output_specs is not None
    return Problem(spec.name, {**inputs, **spec.output_specs(attrs, inputs)}, attrs)


def check_resources(binary: Binary, target: Target, what: object) -> None:
    """Shared memory and threads within limits; no register spilled to memory."""
    assert binary.shared_bytes <= target.shared_bytes, (what, binary.shared_bytes)
    assert binary.threads <= 1024, what
    found = binary.resources
    # ptxas takes 8 bytes for some kernels that are far from the limit: no spill.
    least = 0 if target.api == "rocm" else 8
    assert found.spilled == 0 and found.scratch_bytes <= least, (what, found)


def check_plan(
    kernel: TritonKernel,
    problem: Problem,
    target: Target,
    config: Config | None = None,
    matrix: bool = True,
) -> list[Binary]:
    """Compiles the favourite (or given) configuration. matrix: its first launch must use the matrix
    unit, in the form that the target has, or for small tiles its older one."""
    reason = kernel.supports(problem, target)
    assert reason is None, reason
    binaries, config = favourite(kernel, problem, target, config)
    for binary in binaries:
        check_resources(binary, target, (kernel.name, dict(config), target.name))
    if matrix:
        names = [_MATRIX[str(target.matrix_unit)]]
        if target.api == "cuda" and config["BM"] < 64:
            names.append(_MATRIX["mma"])
        assert any(name in binaries[0].assembly for name in names), (target.name, dict(config))
    return binaries
