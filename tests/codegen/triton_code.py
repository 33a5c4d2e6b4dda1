"""Compiles favourite configurations for GPUs that are not there, and reads what came out."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton

from pumice.operators.base import OperatorSpec
from pumice.operators.triton.build import Binary, build_plan
from pumice.operators.triton.plan import Config, Problem, TensorSpec, TritonKernel
from pumice.targets import Target


def spills(binary: Binary, target: Target) -> int:
    """Registers (AMD) or bytes (NVIDIA's local memory) that did not fit."""
    if target.api == "rocm":
        lines = re.findall(r"\.(?:v|s)gpr_spill_count:\s*(\d+)", binary.assembly)
        scratch = re.findall(r"\.private_segment_fixed_size:\s*(\d+)", binary.assembly)
        assert lines and scratch
        return sum(map(int, lines + scratch))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.code)
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    used = re.findall(r"(?:STACK|LOCAL):(\d+)", text)
    assert used
    return sum(map(int, used))


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
        assert spills(binary, target) == 0, f"{kernel.name} {config} on {target.name} spills"
    return binaries
