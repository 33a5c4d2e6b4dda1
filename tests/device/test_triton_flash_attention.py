"""Flash attention in Triton's interpreter: every case under several tiles, strided views, no rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_harness import relative_error, run_case

from pumice.operators.flash_attention.spec import SPEC
from pumice.operators.flash_attention.triton_plan import FlashAttention
from pumice.targets import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
CASES = SPEC.cases(np.random.default_rng(0))
KERNEL = FlashAttention()


def check(attrs: dict[str, Any], inputs: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> None:
    expected = SPEC.reference(attrs, inputs)
    assert got.keys() == expected.keys()
    for name, array in got.items():
        want = expected[name]
        assert np.array_equal(np.isneginf(array.astype(np.float64)), np.isneginf(want))
        limit = SPEC.tolerance[inputs["q"].dtype.name] if name == "out" else 2e-3
        finite = np.isfinite(want)
        assert relative_error(array[finite], want[finite]) < limit, name


@pytest.mark.parametrize("index", range(len(CASES)))
@pytest.mark.parametrize("name", ["sm_90", "gfx1100"])
def test_cases(index: int, name: str) -> None:
    attrs, inputs = CASES[index]
    check(attrs, inputs, run_case(SPEC, KERNEL, attrs, inputs, TARGETS[name]))
