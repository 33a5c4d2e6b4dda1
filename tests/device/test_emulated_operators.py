"""Triton kernels of the operators, executed on emulated AMD GPUs, against their references."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from emulated_harness import emulate, problem_of

from pumice.operators.base import OperatorSpec
from pumice.operators.gemm.product import of_problem
from pumice.operators.gemm.triton_plan import GemmTiled
from pumice.operators.registry import GPU_OPERATORS, get_spec, triton_kernels_of
from pumice.operators.triton.plan import Config, Plan, Problem
from pumice.targets import Target
from pumice.targets.gpu import GPU_TARGETS
from pumice.verify.judge import relative_error

TARGETS = {target.name: target for target in GPU_TARGETS}
ARCHS = ("gfx1100", "gfx942", "gfx1201", "gfx90a", "gfx950", "gfx1151")
KERNELS = [
    (name, kernel)
    for name in GPU_OPERATORS
    for kernel in triton_kernels_of(name)
    if not kernel.name.endswith("stream_k")
]


@functools.cache
def cases(name: str) -> list:
    return get_spec(name).cases(np.random.default_rng(7))


def first_cases(name: str, kernel, target, count: int) -> list[int]:
    """The first cases that the kernel supports there and that have something to compute."""
    spec, found = get_spec(name), []
    for index, (attrs, inputs) in enumerate(cases(name)):
        problem = problem_of(spec, attrs, inputs)
        if all(tensor.elements for tensor in problem.tensors.values()) and (
            kernel.supports(problem, target) is None
        ):
            found.append(index)
            if len(found) == count:
                break
    return found


def check(spec: OperatorSpec, kernel, index: int, target: Target) -> None:
    attrs, inputs = cases(spec.name)[index]
    got = emulate(spec, kernel, attrs, inputs, target)
    expected = spec.reference(attrs, inputs)
    assert set(got) == set(expected)
    for name, array in got.items():
        error = relative_error(array, expected[name])
        path = str(attrs.get("precision", "ieee"))
        assert error <= spec.tolerance.get(path, spec.tolerance[array.dtype.name]), (name, error)


@pytest.mark.parametrize("at", range(len(KERNELS)), ids=[kernel.name for _, kernel in KERNELS])
def test_every_kernel_on_one_card(at: int) -> None:
    """Cards take turns, so that every card runs a part of every operator."""
    name, kernel = KERNELS[at]
    for turn in range(len(ARCHS)):
        arch = ARCHS[(at + turn) % len(ARCHS)]
        found = first_cases(name, kernel, TARGETS[arch], 1)
        if found:
            check(get_spec(name), kernel, found[0], TARGETS[arch])
            return
    pytest.skip(f"{kernel.name} is for other cards than AMD's")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", GPU_OPERATORS)
def test_every_operator_has_a_kernel(name: str, arch: str) -> None:
    kernels = triton_kernels_of(name)
    assert any(first_cases(name, kernel, TARGETS[arch], 1) for kernel in kernels)


def test_a_mix_of_whole_and_split_tiles() -> None:
    """What stream K does on a card with fewer units than tiles: the cases are too small for it."""
    rng = np.random.default_rng(3)
    inputs = {
        "x": rng.standard_normal((17, 200), np.float32).astype(np.float16),
        "w": rng.standard_normal((72, 200), np.float32).astype(np.float16),
    }
    spec, target = get_spec("gemm"), TARGETS["gfx1100"]
    config = {"BM": 32, "BN": 16, "BK": 32, "warps": 4, "stages": 2, "split": 3}

    class Mixed:
        name = "gemm.triton.mixed"

        def supports(self, problem: Problem, target: Target) -> None:
            return None

        def configs(self, problem: Problem, target: Target) -> list[Config]:
            return [config]

        def plan(self, problem: Problem, target: Target, config: Config) -> Plan:
            return GemmTiled().launches(of_problem(problem), target, config, 2)

    got = emulate(spec, Mixed(), {}, inputs, target)["out"].astype(np.float64)
    want = np.asarray(spec.reference({}, inputs)["out"], np.float64)
    assert np.linalg.norm(got - want) <= spec.tolerance["float16"] * np.linalg.norm(want)


@pytest.mark.parametrize("arch", ARCHS[:3])
@pytest.mark.parametrize("name", ["gemm", "flash_attention", "gemm_w4", "norm"])
def test_more_cases(name: str, arch: str) -> None:
    target = TARGETS[arch]
    for kernel in triton_kernels_of(name):
        found = first_cases(name, kernel, target, 2)
        if found:
            check(get_spec(name), kernel, found[-1], target)
            return
    pytest.fail(f"{name} has no kernel for {arch}")
