"""Compiled AMD code of the 4-bit product, normalization, quantization and sampling, executed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_emulated import check_emulated
from triton_harness import make_problem

from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.targets import get_target

# Operator → the cases that take the paths of their own: packed dots, scales, loops, filters.
CASES = {
    "gemm_w4": (2, 4, 11, 19),
    "fused_w4": (3, 6, 10),
    "dequantize_w4": (4, 5),
    "norm": (3, 4, 9, 12, 15, 17, 18),
    "quantize_fp8": (3, 4, 8),
    "activation_mul": (3, 6),
    "softmax": (0, 4),
    "sample_tokens": (3, 5),
    "token_embedding": (4, 6, 8, 13),
}


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str, arch: str) -> None:
    spec, target = get_spec(name), get_target(arch)
    cases: list[Any] = spec.cases(np.random.default_rng(7))
    ran = 0
    for index in CASES[name]:
        attrs, inputs = cases[index]
        for kernel in triton_kernels_of(name):
            if kernel.supports(make_problem(spec, attrs, inputs), target) is None:
                check_emulated(spec, kernel, attrs, inputs, target)
                ran += 1
    assert ran >= len(CASES[name])
