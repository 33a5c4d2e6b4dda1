"""Every Triton operator's machine code for AMD's GPUs, executed on emulated cards that look for
races, accesses out of bounds and NaN, and judged as `pumice verify` does.

RDNA3, CDNA3 and RDNA4 run the smallest case of every kernel, and take turns over larger ones; the
other architectures take turns over the operators. `pumice verify --target ARCH --all` runs all
cases.
"""

from __future__ import annotations

import numpy as np
import pytest
from emulated_cases import full_cases, passes, smallest

from pumice.operators.gemm.product import of_problem
from pumice.operators.gemm.triton_plan import GemmTiled
from pumice.operators.registry import GPU_OPERATORS, get_spec, triton_kernels_of
from pumice.operators.triton.plan import Config, Plan, Problem
from pumice.targets import Target
from pumice.verify.verify import case_at

ARCHS = ("gfx1100", "gfx942", "gfx1201")
OTHERS = ("gfx90a", "gfx950", "gfx1151", "gfx1200")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", GPU_OPERATORS)
def test_every_kernel(name: str, arch: str) -> None:
    ran = [
        passes(found, arch) for k in triton_kernels_of(name) if (found := smallest(name, k, arch))
    ]
    assert ran, f"{name} has no kernel for {arch}"


@pytest.mark.parametrize("at", range(len(GPU_OPERATORS)), ids=list(GPU_OPERATORS))
def test_a_larger_case(at: int) -> None:
    """The second smallest that the favourite kernel takes; the cards take turns."""
    name, arch = list(GPU_OPERATORS)[at], ARCHS[at % len(ARCHS)]
    for kernel in triton_kernels_of(name):
        found = full_cases(name, kernel, arch)
        if found:
            passes(found[min(1, len(found) - 1)], arch)
            return
    pytest.fail(f"{name} has no kernel for {arch}")


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


def test_a_wrong_reference_is_noticed() -> None:
    kernel = triton_kernels_of("softmax")[0]
    case = smallest("softmax", kernel, "gfx1100")
    assert case is not None
    right = case.spec.reference(case.attrs, case.inputs)
    with pytest.raises(AssertionError, match="error"):
        passes(case, "gfx1100", expected={name: 1.1 * value for name, value in right.items()})
