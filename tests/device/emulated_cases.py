"""Cases of the operators on emulated cards, run and judged as `pumice verify` does."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.registry import get_spec
from pumice.operators.triton.plan import TritonKernel
from pumice.runtime.devices.driver.choose import open_device
from pumice.targets import get_target
from pumice.verify.judge import judge
from pumice.verify.runner import Runner
from pumice.verify.verify import SEED, Case, case_at


@functools.cache
def runner(arch: str) -> Runner:
    return Runner(open_device(f"rocm:sanitized-{arch}"), get_target(arch))


@functools.cache
def _made(name: str) -> list[Any]:
    return get_spec(name).cases(np.random.default_rng(SEED))


def full_cases(name: str, kernel: TritonKernel, arch: str) -> list[Case]:
    """Cases that the kernel takes and that have something to compute, the smallest first."""
    spec, target, found = get_spec(name), get_target(arch), []
    for index, (attrs, inputs) in enumerate(_made(name)):
        if all(array.size for array in inputs.values()):
            case = case_at(spec, kernel, index, attrs, inputs)
            if kernel.supports(case.problem, target) is None:
                found.append(case)
    return sorted(found, key=lambda case: case.size)


def smallest(name: str, kernel: TritonKernel, arch: str) -> Case | None:
    found = full_cases(name, kernel, arch)
    return found[0] if found else None


def passes(case: Case, arch: str, expected: Mapping[str, Any] | None = None) -> None:
    """AssertionError for a wrong result; DeviceError for what the sanitizer finds."""
    got = runner(arch).case(case.spec, case.kernel, case.attrs, case.inputs)
    want = case.spec.reference(case.attrs, case.inputs) if expected is None else expected
    error, limit = judge(case.spec, case.problem, got, want)
    assert error <= limit, f"{case.kernel.name} case {case.index}: error {error:.2e} > {limit:.0e}"
