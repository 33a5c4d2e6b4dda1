"""Cases of the operators on emulated cards, run and judged as `pumice verify` does.

Kernels are compiled in a process beside this one, into Triton's cache: its LLVM aborts once in
some hundred compilations for RDNA, which must not end the tests. What aborts three times fails.
"""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from pumice.compiler.gpu.binaries import Binaries, _build
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


@functools.cache
def _compiler() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


def _compile(case: Case, arch: str) -> None:
    """Leaves a case's kernels in Triton's cache. Functions that are made inside a test are left for
    this process."""
    target, kernel = get_target(arch), case.kernel
    plan = kernel.plan(case.problem, target, kernel.configs(case.problem, target)[0])
    binaries = Binaries(target)
    for launch in plan.launches:
        binaries.symbol(launch, {**case.problem.tensors, **plan.workspaces})
    for task in binaries.tasks.values():
        for attempt in range(3):
            try:
                _compiler().submit(_build, task).result()
                break
            except BrokenProcessPool:
                _compiler.cache_clear()
                if attempt == 2:
                    raise


def passes(case: Case, arch: str, expected: Mapping[str, Any] | None = None) -> None:
    """AssertionError for a wrong result; DeviceError for what the sanitizer finds."""
    _compile(case, arch)
    got = runner(arch).case(case.spec, case.kernel, case.attrs, case.inputs)
    want = case.spec.reference(case.attrs, case.inputs) if expected is None else expected
    error, limit = judge(case.spec, case.problem, got, want)
    assert error <= limit, f"{case.kernel.name} case {case.index}: error {error:.2e} > {limit:.0e}"
