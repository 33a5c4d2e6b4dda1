"""Attention over paged caches in Triton's interpreter: decode and chunks."""

from __future__ import annotations

import numpy as np
import pytest
from triton_harness import relative_error, run_case

from pumice.operators.paged_attention.spec import SPEC as DECODE
from pumice.operators.paged_attention.triton_plan import PagedAttention
from pumice.operators.paged_prefill.spec import SPEC as PREFILL
from pumice.operators.paged_prefill.triton_plan import PagedPrefill
from pumice.targets import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
CASES = [
    (spec, kernel, attrs, inputs)
    for spec, kernel in ((DECODE, PagedAttention()), (PREFILL, PagedPrefill()))
    for attrs, inputs in spec.cases(np.random.default_rng(0))
]


@pytest.mark.parametrize("index", range(len(CASES)))
@pytest.mark.parametrize("name", ["sm_90", "gfx1100"])
def test_cases(index: int, name: str) -> None:
    spec, kernel, attrs, inputs = CASES[index]
    got = run_case(spec, kernel, attrs, inputs, TARGETS[name])["out"]
    limit = spec.tolerance[inputs["q"].dtype.name]
    assert relative_error(got, spec.reference(attrs, inputs)["out"]) < limit
