"""Operators' machine code on the emulated architectures that do not run every case
(test_emulated_gfx*.py do), and what shows that those tests can fail."""

from __future__ import annotations

import emulated_cases
import numpy as np
import pytest
from emulated_cases import ARCHS, IN_TURNS, all_pass, cases_of_kernel, passes, smallest, turn_of

from pumice.operators.gemm.product import of_problem
from pumice.operators.gemm.triton_plan import GemmTiled
from pumice.operators.registry import GPU_OPERATORS, get_spec, triton_kernels_of
from pumice.operators.triton.plan import Config, Plan, Problem
from pumice.targets import Target
from pumice.verify.verify import case_at

OTHERS = ("gfx90a", "gfx950", "gfx1151", "gfx1200")


@pytest.mark.parametrize("at", range(len(GPU_OPERATORS)), ids=list(GPU_OPERATORS))
def test_the_other_architectures_take_turns(at: int) -> None:
    name = list(GPU_OPERATORS)[at]
    arch = OTHERS[at % len(OTHERS)]
    found = [smallest(name, kernel, arch) for kernel in triton_kernels_of(name)]
    cases = [case for case in found if case is not None]
    assert cases, f"{name} has no kernel for {arch}"
    passes(cases[0], arch)


def test_a_mix_of_whole_and_split_tiles() -> None:
    """What stream K does on a card with fewer units than tiles: the cases are too small for it."""
    rng = np.random.default_rng(3)
    inputs = {
        "x": rng.standard_normal((17, 200), np.float32).astype(np.float16),
        "w": rng.standard_normal((72, 200), np.float32).astype(np.float16),
    }
    config = {"BM": 32, "BN": 16, "BK": 32, "warps": 4, "stages": 2, "split": 3}

    class Mixed:
        name = "gemm.triton.mixed"

        def supports(self, problem: Problem, target: Target) -> None:
            return None

        def configs(self, problem: Problem, target: Target) -> list[Config]:
            return [config]

        def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
            return GemmTiled().launches(of_problem(problem), target, config, 2)

    passes(case_at(get_spec("gemm"), Mixed(), 0, {}, inputs), "gfx1100")


def test_every_operator_has_a_kernel_everywhere() -> None:
    for arch in (*ARCHS, *OTHERS):
        for name in GPU_OPERATORS:
            kernels = triton_kernels_of(name)
            assert any(smallest(name, kernel, arch) for kernel in kernels), (name, arch)


def test_every_case_runs_on_some_card() -> None:
    """Those in turns on one, the others on all that have what they need."""
    kernels = {kernel.name: (name, kernel) for name in GPU_OPERATORS
               for kernel in triton_kernels_of(name)}  # fmt: skip
    for kernel_name, indices in IN_TURNS.items():
        name, kernel = kernels[kernel_name]
        for index in indices:
            assert turn_of(name, kernel, index) in ARCHS, (kernel_name, index)
    for name, kernel in kernels.values():
        taken = {case.index for arch in ARCHS for case in cases_of_kernel(name, kernel, arch)}
        ran = {case.index for arch in ARCHS for case in emulated_cases.cases_for(name, arch)
               if case.kernel.name == kernel.name}  # fmt: skip
        assert taken == ran, kernel.name


def test_a_wrong_reference_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = triton_kernels_of("softmax")[0]
    case = smallest("softmax", kernel, "gfx1100")
    assert case is not None
    right = case.spec.reference(case.attrs, case.inputs)
    with pytest.raises(AssertionError, match="error"):
        passes(case, "gfx1100", expected={name: 1.1 * value for name, value in right.items()})
    monkeypatch.setattr(emulated_cases, "judge", lambda *_: (0.5, 0.1))
    with pytest.raises(AssertionError, match=f"{kernel.name} case {case.index}: error 5.00e-01"):
        all_pass([case], "gfx1100")
