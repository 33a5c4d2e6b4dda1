"""Cases of the operators on emulated cards, run and judged as `pumice verify` does.

A process beside this one compiles: Triton's LLVM has aborted once in some hundred compilations for
RDNA, which must not end the tests. What aborts three times fails.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from pumice.compiler.gpu.binaries import Binaries, Built, Task, build_task
from pumice.errors import CompileError
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.plan import TritonKernel
from pumice.processes import start_worker
from pumice.runtime.devices.driver.choose import open_device
from pumice.targets import get_target
from pumice.verify.judge import judge
from pumice.verify.runner import Runner
from pumice.verify.verify import SEED, Case, case_at

ARCHS = ("gfx1100", "gfx942", "gfx1201")
# Kernel → cases whose machine code takes 1.2 seconds or more to compile: one card runs each.
IN_TURNS: dict[str, tuple[int, ...]] = {
    "batched_gemm.triton.gemv": (0,),
    "batched_gemm.triton.split_k": (2,),
    "batched_gemm.triton.tiled": (2,),
    "decode_attention.triton.split": (0, 2, 4, 5, 6, 7),
    "fused_w4.triton.persistent": (5, 7),
    "gemm.triton.gemv": (0, 9),
    "gemm.triton.tiled": (7,),
    "gemm_fp8.triton.gemv": (0, 3, 8, 9),
    "gemm_fp8.triton.split_k": (2, 4, 8),
    "gemm_fp8.triton.tiled": (6, 7, 8, 10),
    "gemm_fp8_block.triton.gemv": (0, 3, 7, 8),
    "gemm_fp8_block.triton.split_k": (2, 3, 6, 7, 8),
    "gemm_fp8_block.triton.tiled": (0, 2, 3, 5, 8),
    "gemm_int8.triton.gemv": (0, 3, 9),
    "gemm_int8.triton.tiled": (0,),
    "gemm_w4.triton.tiled": (10,),
    "moe_gemm.triton.grouped": (0, 2, 4),
    "paged_prefill.triton.tiled": (3,),
}
_ATTEMPTS = 3


@functools.cache
def runner(arch: str) -> Runner:
    return Runner(open_device(f"rocm:sanitized-{arch}"), get_target(arch))


@functools.cache
def _made(name: str) -> list[Any]:
    return get_spec(name).cases(np.random.default_rng(SEED))


def cases_of_kernel(name: str, kernel: TritonKernel, arch: str) -> list[Case]:
    """Those that the kernel takes on a card."""
    spec, target = get_spec(name), get_target(arch)
    found = (case_at(spec, kernel, at, *made) for at, made in enumerate(_made(name)))
    return [case for case in found if kernel.supports(case.problem, target) is None]


def turn_of(name: str, kernel: TritonKernel, index: int) -> str | None:
    """The card that runs a case IN_TURNS: the first after its own that the kernel takes it on."""
    order = [ARCHS[(index + step) % len(ARCHS)] for step in range(len(ARCHS))]
    spec, (attrs, inputs) = get_spec(name), _made(name)[index]
    problem = case_at(spec, kernel, index, attrs, inputs).problem
    return next((a for a in order if kernel.supports(problem, get_target(a)) is None), None)


def cases_for(name: str, arch: str) -> list[Case]:
    """All of an operator's cases on a card, but for those that another card runs."""
    found = []
    for kernel in triton_kernels_of(name):
        turns = IN_TURNS.get(kernel.name, ())
        for case in cases_of_kernel(name, kernel, arch):
            if case.index not in turns or turn_of(name, kernel, case.index) == arch:
                found.append(case)
    return found


def smallest(name: str, kernel: TritonKernel, arch: str) -> Case | None:
    """Of the cases that have something to compute."""
    cases = cases_of_kernel(name, kernel, arch)
    full = [case for case in cases if all(array.size for array in case.inputs.values())]
    return min(full, key=lambda case: case.size, default=None)


class _Compiler:
    """Leaves kernels in Triton's cache. Functions that are made inside a test are left for this
    process."""

    def __init__(self) -> None:
        self.pool: ProcessPoolExecutor | None = None
        self.started: dict[str, Future[Built]] = {}
        self.tries: Counter[str] = Counter()

    def start(self, tasks: Mapping[str, Task]) -> None:
        """Compiles them in the given order, as far as they are not compiled yet."""
        if self.pool is None:
            self.pool = ProcessPoolExecutor(
                1, multiprocessing.get_context("spawn"), start_worker, (os.getpid(),)
            )
        for symbol, task in tasks.items():
            if symbol not in self.started:
                self.started[symbol] = self.pool.submit(build_task, task)

    def wait(self, tasks: Mapping[str, Task]) -> None:
        """Returns when all are compiled."""
        for symbol, task in tasks.items():
            while not self._compiled(symbol, task):
                if self.tries[symbol] == _ATTEMPTS:
                    raise CompileError(f"the process that compiled {symbol} ended, three times")

    def _compiled(self, symbol: str, task: Task) -> bool:
        try:
            self.start({symbol: task})
            self.started[symbol].result()
        except BrokenProcessPool:
            # What waited for it starts anew when its turn comes.
            self.pool = None
            done = {s: f for s, f in self.started.items() if f.done() and not f.exception()}
            self.started = done
            self.tries[symbol] += 1
            return False
        return True


_compiler = _Compiler()


def _tasks(case: Case, arch: str) -> Mapping[str, Task]:
    target, kernel = get_target(arch), case.kernel
    plan = kernel.plan(case.problem, target, kernel.configs(case.problem, target)[0])
    binaries = Binaries(target)
    for launch in plan.launches:
        binaries.symbol(launch, {**case.problem.tensors, **plan.workspaces})
    return binaries.tasks


def passes(case: Case, arch: str, expected: Mapping[str, Any] | None = None) -> None:
    """AssertionError for a wrong result; DeviceError for what the sanitizer finds."""
    _compiler.wait(_tasks(case, arch))
    got = runner(arch).case(case.spec, case.kernel, case.attrs, case.inputs)
    want = case.spec.reference(case.attrs, case.inputs) if expected is None else expected
    error, limit = judge(case.spec, case.problem, got, want)
    assert error <= limit, f"{case.kernel.name} case {case.index}: error {error:.2e} > {limit:.0e}"


def all_pass(cases: Sequence[Case], arch: str) -> None:
    """Runs every case, and says all that went wrong. Kernels are compiled meanwhile."""
    for case in cases:
        _compiler.start(_tasks(case, arch))
    wrong = list(_wrong(cases, arch))
    assert not wrong, "\n".join(wrong)


def _wrong(cases: Iterable[Case], arch: str) -> Iterator[str]:
    for case in cases:
        try:
            passes(case, arch)
        except AssertionError as error:
            yield str(error)
        except Exception as error:
            yield f"{case.kernel.name} case {case.index}: {type(error).__name__}: {error}"
