"""Every Triton operator's machine code for AMD's GPUs, through the ROCm runtime's driver layer on
emulated cards, against the operators' references.

One case an operator here, round the architectures: the smallest that its favourite kernel takes and
that is not empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from triton_harness import make_problem, relative_error

from pumice.operators.registry import GPU_OPERATORS, get_spec, triton_kernels_of
from pumice.operators.triton.plan import TritonKernel
from pumice.runtime.devices.driver.choose import open_device
from pumice.targets import get_target
from pumice.verify.runner import Runner

ARCHS = ("gfx1100", "gfx942", "gfx1201")


@cache
def runner(arch: str) -> Runner:
    return Runner(open_device(f"rocm:sanitized-{arch}"), get_target(arch))


def smallest(name: str, kernel: TritonKernel, arch: str) -> tuple[Any, Any] | None:
    """(attrs, inputs) of a kernel's smallest case on an architecture."""
    spec, target = get_spec(name), get_target(arch)
    taken = []
    for attrs, inputs in spec.cases(np.random.default_rng(7)):
        problem = make_problem(spec, attrs, inputs)
        if kernel.supports(problem, target) is None and all(a.size for a in inputs.values()):
            taken.append((sum(a.size for a in inputs.values()), len(taken), attrs, inputs))
    return min(taken)[2:] if taken else None


def favourites() -> Iterator[tuple[str, TritonKernel, str]]:
    """Each operator's first kernel that has such a case, on the next architecture that has one."""
    for index, name in enumerate(GPU_OPERATORS):
        turns = [ARCHS[(index + turn) % len(ARCHS)] for turn in range(len(ARCHS))]
        choices = [(kernel, arch) for kernel in triton_kernels_of(name) for arch in turns]
        kernel, arch = next(c for c in choices if smallest(name, *c) is not None)
        yield name, kernel, arch


KERNELS = list(favourites())


@pytest.mark.parametrize(
    ("name", "kernel", "arch"), KERNELS, ids=[f"{k.name}-{arch}" for _, k, arch in KERNELS]
)
def test_smallest_case(name: str, kernel: TritonKernel, arch: str) -> None:
    spec = get_spec(name)
    case = smallest(name, kernel, arch)
    assert case is not None
    attrs, inputs = case
    got = runner(arch).case(spec, kernel, attrs, inputs)
    for output, expected in spec.reference(attrs, inputs).items():
        error = relative_error(got[output], expected)
        assert error <= spec.tolerance[got[output].dtype.name], (output, error)
