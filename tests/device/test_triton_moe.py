"""Routing and experts of a mixture in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
from matmul_interpreter import check_case
from triton_harness import interpret, make_problem, run_case, to_torch

from pumice.operators.moe_gemm.align import align
from pumice.operators.registry import get_spec, triton_kernels_of
from pumice.operators.triton.plan import Plan, Problem, TensorSpec
from pumice.targets.gpu import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
ROUTER = get_spec("topk_softmax")
(ROWS,) = triton_kernels_of("topk_softmax")
ROUTINGS = ROUTER.cases(np.random.default_rng(7))
EXPERTS = get_spec("moe_gemm")
_, GROUPED = triton_kernels_of("moe_gemm")
MIXTURES = EXPERTS.cases(np.random.default_rng(7))


@pytest.mark.parametrize("index", range(len(ROUTINGS)))
def test_routing(index: int) -> None:
    attrs, inputs = ROUTINGS[index]
    target = TARGETS[("sm_90", "gfx942", "gfx1100")[index % 3]]
    expected = ROUTER.reference(attrs, inputs)
    for config in ROWS.configs(make_problem(ROUTER, attrs, inputs), target)[:2]:
        got = run_case(ROUTER, ROWS, attrs, inputs, target, config)
        np.testing.assert_array_equal(got["ids"], expected["ids"])
        np.testing.assert_allclose(got["weights"], expected["weights"], rtol=1e-5)


@pytest.mark.parametrize("index", range(len(MIXTURES)))
def test_experts(index: int) -> None:
    attrs, inputs = MIXTURES[index]
    fp8 = inputs["x"].dtype.itemsize == 1
    target = TARGETS[("sm_90", "gfx950" if fp8 else "gfx942", "gfx1201")[index % 3]]
    configs = GROUPED.configs(make_problem(EXPERTS, attrs, inputs), target)
    check_case(EXPERTS, GROUPED, attrs, inputs, target)
    if index % 2:
        check_case(EXPERTS, GROUPED, attrs, inputs, target, configs[-1])


def test_entries_are_sorted_by_expert() -> None:
    """Whole blocks, entries in order inside an expert; more entries than a chunk; ids elsewhere."""
    rng = np.random.default_rng(1)
    for entries, experts, rows in ((700, 24, 16), (1, 8, 16), (300, 256, 64)):
        ids = rng.integers(-1, experts + 1, entries).astype(np.int32)
        launches, workspaces = align(entries, experts, rows)
        names = {"ids": TensorSpec((entries,), "int32"), **workspaces}
        arrays = {name: np.full(spec.shape, -7, np.int32) for name, spec in names.items()}
        arrays["ids"] = ids
        tensors = {name: to_torch(array) for name, array in arrays.items()}
        interpret(Problem("align", names), Plan(tuple(launches)), tensors)
        expected: list[int] = []
        owners: list[int] = []
        for expert in range(experts):
            mine = np.flatnonzero(ids == expert).tolist()
            owners += [expert] * -(-len(mine) // rows)
            expected += mine + [entries] * (-len(mine) % rows)
        used = int(arrays["used"][0])
        assert used == len(expected)
        assert arrays["order"][:used].tolist() == expected
        assert set(arrays["order"][used:].tolist()) <= {entries}
        assert arrays["owners"][: used // rows].tolist() == owners
