"""gated_gemm and batched_gemm in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from matmul_interpreter import check_case, check_strided
from triton_harness import make_problem

from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.targets.gpu import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
OPERATORS = ("gated_gemm", "batched_gemm")
KERNELS = {kernel.name: kernel for name in OPERATORS for kernel in triton_kernels_of(name)}
CASES = {name: get_spec(name).cases(np.random.default_rng(7)) for name in OPERATORS}
NAMES = ("sm_90", "gfx942", "gfx1100")
SUPPORTED = [
    (kernel, index, NAMES[index % 3])
    for kernel in KERNELS
    for name in [kernel.partition(".")[0]]
    for index, case in enumerate(CASES[name])
    if KERNELS[kernel].supports(make_problem(get_spec(name), *case), TARGETS[NAMES[index % 3]])
    is None
]


def test_every_case_has_a_kernel() -> None:
    whole = {(kernel, index) for kernel, index, _ in SUPPORTED if kernel.endswith("tiled")}
    assert whole == {
        (f"{name}.triton.tiled", index) for name in OPERATORS for index in range(len(CASES[name]))
    }


@pytest.mark.parametrize(("kernel", "index", "target"), SUPPORTED)
def test_cases(kernel: str, index: int, target: str) -> None:
    spec = get_spec(kernel.partition(".")[0])
    attrs, inputs = CASES[spec.name][index]
    configs = KERNELS[kernel].configs(make_problem(spec, attrs, inputs), TARGETS[target])
    check_case(spec, KERNELS[kernel], attrs, inputs, TARGETS[target])
    if index % 2:
        check_case(spec, KERNELS[kernel], attrs, inputs, TARGETS[target], configs[-1])


@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_with_gaps(kernel: str) -> None:
    spec = get_spec(kernel.partition(".")[0])
    attrs, inputs = CASES[spec.name][0 if "batched" not in kernel else 5]
    check_strided(spec, KERNELS[kernel], attrs, inputs, TARGETS["sm_90"], ("x", "w", "out"))
