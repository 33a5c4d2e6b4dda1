"""Every case of every operator on one device, with a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pumice.errors import PumiceError, StorageError
from pumice.operators.base import OperatorSpec
from pumice.operators.registry import GPU_OPERATORS, get_spec, triton_kernels_of
from pumice.operators.triton.build import Binary
from pumice.operators.triton.plan import Problem, TritonKernel
from pumice.targets import Target
from pumice.verify.judge import judge
from pumice.verify.runner import Runner, problem_of

SEED = 7  # of the cases' random numbers


@dataclass(frozen=True)
class Verdict:
    """One case of one kernel. error: the largest ‖out − ref‖ / ‖ref‖ of its outputs; tolerance: of
    the output it belongs to. vgprs, sgprs, spills, scalar_spills, lds_bytes: of the largest kernel
    of the case (AMD only, else −1; shared memory for all). spills: vector registers that went to
    memory; scalar_spills: scalar ones that went to vector registers. text: what went wrong, in
    words.
    """

    operator: str
    kernel: str
    case: int
    shapes: str
    error: float
    tolerance: float
    vgprs: int
    sgprs: int
    spills: int
    scalar_spills: int
    lds_bytes: int
    seconds: float
    text: str = ""

    @property
    def passed(self) -> bool:
        return not self.text and self.error <= self.tolerance


@dataclass(frozen=True)
class Case:
    """A case that a kernel supports on a target."""

    spec: OperatorSpec
    kernel: TritonKernel
    index: int
    attrs: Any
    inputs: Any
    problem: Problem

    @property
    def size(self) -> int:
        return sum(int(array.size) for array in self.inputs.values())


def case_at(spec: OperatorSpec, kernel: TritonKernel, index: int, attrs: Any, inputs: Any) -> Case:
    """A spec's case with its problem."""
    return Case(spec, kernel, index, attrs, inputs, problem_of(spec, attrs, inputs))


def cases_of(target: Target, operators: Iterable[str] = (), most: int | None = None) -> list[Case]:
    """Cases of the operators (all when none is named) that the kernels support on the target.

    most: of a kernel, only so many, the smallest that are not empty.
    """
    found: list[Case] = []
    for name in operators or GPU_OPERATORS:
        spec = get_spec(name)
        made = spec.cases(np.random.default_rng(SEED))
        for kernel in triton_kernels_of(name):
            mine = []
            for index, (attrs, inputs) in enumerate(made):
                case = case_at(spec, kernel, index, attrs, inputs)
                if kernel.supports(case.problem, target) is None:
                    mine.append(case)
            if most is not None:
                full = [c for c in mine if all(array.size for array in c.inputs.values())]
                mine = sorted(full, key=lambda c: c.size)[:most]
            found += mine
    return found


def verify(
    runner: Runner, cases: Iterable[Case], done: Callable[[Verdict], None] | None = None
) -> Generator[Verdict]:
    """Runs cases one after the other; `done` is told of each."""
    for case in cases:
        verdict = run_case(runner, case)
        if done is not None:
            done(verdict)
        yield verdict


def run_case(runner: Runner, case: Case) -> Verdict:
    """Runs and judges one case. Whatever goes wrong becomes the verdict's text, but StorageError: a
    disk that takes no compiled kernel says nothing of the kernel, and will take no other."""
    start = time.perf_counter()
    error, tolerance, text = float("nan"), 0.0, ""
    try:
        got = runner.case(case.spec, case.kernel, case.attrs, case.inputs)
        expected = case.spec.reference(case.attrs, case.inputs)
        error, tolerance = judge(case.spec, case.problem, got, expected)
    except StorageError:
        raise
    except PumiceError as problem:
        text = problem.message
    except Exception as fault:  # of a kernel's plan, or of the emulator: the other cases go on
        text = f"{type(fault).__name__}: {fault}"
    registers = [_registers(binary) for binary in runner.last]
    return Verdict(
        operator=case.spec.name,
        kernel=case.kernel.name,
        case=case.index,
        shapes=", ".join(
            f"{name} {'×'.join(map(str, array.shape))}" for name, array in case.inputs.items()
        ),
        error=error,
        tolerance=tolerance,
        vgprs=max((r[0] for r in registers), default=-1),
        sgprs=max((r[1] for r in registers), default=-1),
        spills=max((r[2] for r in registers), default=-1),
        scalar_spills=max((r[3] for r in registers), default=-1),
        lds_bytes=max((binary.shared_bytes for binary in runner.last), default=0),
        seconds=time.perf_counter() - start,
        text=text,
    )


def _registers(binary: Binary) -> tuple[int, int, int, int]:
    """(vector registers, scalar ones, spilled vector ones, spilled scalar ones) of an AMD kernel;
    −1 for others.
    """
    if binary.code[18:20] != b"\xe0\x00":  # e_machine of AMDGPU
        return -1, -1, -1, -1
    from pumice.binary.amdgpu import read_code_object

    kernel = read_code_object(binary.code).kernels[binary.symbol]
    return kernel.vgprs, kernel.sgprs, kernel.vgpr_spills, kernel.sgpr_spills
