"""Cases on an emulated card, spread over processes: each has a card of its own."""

from __future__ import annotations

import functools
from collections.abc import Generator, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.errors import DeviceError
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.processes import worker_pool
from pumice.runtime.devices.driver.choose import open_device
from pumice.targets import get_target
from pumice.verify.runner import Runner
from pumice.verify.verify import SEED, Case, Verdict, case_at, run_case


@dataclass(frozen=True)
class _Job:
    """A case by name: specs and kernels hold functions, which don't travel."""

    operator: str
    kernel: str
    index: int


@functools.cache
def _runner(device: str, target: str) -> Runner:
    return Runner(open_device(device), get_target(target))


@functools.cache
def _made(operator: str) -> Any:
    return get_spec(operator).cases(np.random.default_rng(SEED))


def _run(device: str, target: str, job: _Job) -> Verdict:
    """In a worker."""
    spec = get_spec(job.operator)
    kernel = next(k for k in triton_kernels_of(job.operator) if k.name == job.kernel)
    attrs, inputs = _made(job.operator)[job.index]
    return run_case(_runner(device, target), case_at(spec, kernel, job.index, attrs, inputs))


def verify_in_processes(
    device: str, target: str, cases: Sequence[Case], jobs: int
) -> Generator[Verdict]:
    """Verdicts as they come, the largest cases first. device: an emulated card's name.

    DeviceError when a process dies: its cases have no verdict. StorageError as in `run_case`.
    """
    order = sorted(cases, key=lambda case: case.size, reverse=True)
    with worker_pool(jobs) as pool:
        waiting: dict[Future[Verdict], _Job] = {}
        for case in order:
            job = _Job(case.spec.name, case.kernel.name, case.index)
            waiting[pool.submit(_run, device, target, job)] = job
        for future in as_completed(waiting):
            try:
                yield future.result()
            except BrokenProcessPool:
                job = waiting[future]
                raise DeviceError(
                    f"a process that ran cases on {device} died; {job.kernel} case {job.index} is "
                    "among those without a verdict",
                    hint="Run that operator alone with --operator and --jobs 1; too little memory "
                    "is the usual cause.",
                ) from None
