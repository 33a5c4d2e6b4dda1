"""Routing and experts of a mixture in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from matmul_interpreter import check_case
from triton_harness import make_problem, run_case

from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.targets.gpu import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
ROUTER = get_spec("topk_softmax")
(ROWS,) = triton_kernels_of("topk_softmax")
ROUTINGS = ROUTER.cases(np.random.default_rng(7))


@pytest.mark.parametrize("index", range(len(ROUTINGS)))
def test_routing(index: int) -> None:
    attrs, inputs = ROUTINGS[index]
    target = TARGETS[("sm_90", "gfx942", "gfx1100")[index % 3]]
    expected = ROUTER.reference(attrs, inputs)
    for config in ROWS.configs(make_problem(ROUTER, attrs, inputs), target)[:2]:
        got = run_case(ROUTER, ROWS, attrs, inputs, target, config)
        np.testing.assert_array_equal(got["ids"], expected["ids"])
        np.testing.assert_allclose(got["weights"], expected["weights"], rtol=1e-5)
