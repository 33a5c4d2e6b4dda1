"""Rotation, append and attention of new tokens in one launch, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from triton_harness import (
    interpret,
    make_problem,
    poisoned,
    relative_error,
    run_case,
    to_numpy,
    to_torch,
)

from pumice.operators.decode_attention.spec import SPEC
from pumice.operators.decode_attention.triton_plan import DecodeAttention
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
CASES = SPEC.cases(np.random.default_rng(0))
KERNEL = DecodeAttention()


def check(index: int, got: dict[str, np.ndarray]) -> None:
    attrs, inputs = CASES[index]
    for name, expected in SPEC.reference(attrs, inputs).items():
        limit = SPEC.tolerance[inputs["q"].dtype.name]
        if name != "out":
            limit = SPEC.tolerance[inputs[name].dtype.name]
        assert relative_error(got[name], expected) < limit, name


@pytest.mark.parametrize("index", range(len(CASES)))
def test_cases(index: int) -> None:
    """Targets take turns: they differ in tile sizes only."""
    target = TARGETS[("sm_90", "gfx1100", "gfx942", "gfx1201")[index % 4]]
    check(index, run_case(SPEC, KERNEL, *CASES[index], target))


@pytest.mark.parametrize("combines", [0, 1])
@pytest.mark.parametrize("index", [0, 1, 3, 4, 5])
def test_shares_of_the_keys(index: int, combines: int) -> None:
    """Five shares, of which short contexts need fewer, and slices of the values' columns."""
    target = TARGETS["gfx1100"]
    favourite = KERNEL.configs(make_problem(SPEC, *CASES[index]), target)[0]
    config = {**favourite, "SPLITS": 5, "BLOCK_V": 64, "BLOCK_N": 32, "COMBINES": combines}
    check(index, run_case(SPEC, KERNEL, *CASES[index], target, config))


def bound(index: int, poison: bool = False, **changes: Any) -> tuple[Problem, Any, dict[str, Any]]:
    """(problem, plan, tensors and workspaces) of a case. poison: NaN where no old key lies."""
    attrs, inputs = CASES[index]
    problem = make_problem(SPEC, attrs, inputs)
    target = TARGETS["gfx1100"]
    plan = KERNEL.plan(problem, target, {**KERNEL.configs(problem, target)[0], **changes})
    arrays = {
        n: inputs[n].copy() if n in inputs else poisoned(t) for n, t in problem.tensors.items()
    }
    for name in ("k_cache", "v_cache") if poison else ():
        cache = arrays[name]
        old = np.zeros(cache.shape[:2], bool)
        for s, length in enumerate(inputs["context_len"].tolist()):
            for p in range(length - 1):
                block = inputs["block_table"][s, p // cache.shape[1]]
                old[block, p % cache.shape[1]] = True
        cache[~old] = np.nan
    for name, tensor in plan.workspaces.items():
        zero = name in plan.zeroed
        arrays[name] = np.zeros(tensor.shape, np.int32) if zero else poisoned(tensor)
    return problem, replace(plan, workspaces={}), {n: to_torch(a) for n, a in arrays.items()}


@pytest.mark.parametrize("index", [0, 3])
def test_new_rows_are_not_read_from_memory_and_runs_are_equal(index: int) -> None:
    """Everything but the old keys is NaN. The counters are zero after a run, so a second one needs
    no zeroing, and has the same bits."""
    problem, plan, tensors = bound(index, poison=True, SPLITS=4, BLOCK_N=16)
    attrs, inputs = CASES[index]
    given = {n: to_numpy(tensors[n]).copy() for n in inputs}
    expected = SPEC.reference(attrs, given)
    results = []
    for _ in range(2):
        tensors["out"] = to_torch(poisoned(problem["out"]))
        interpret(problem, plan, tensors)
        assert not to_numpy(tensors["counters"]).any()
        results.append(to_numpy(tensors["out"]).copy())
    limit = SPEC.tolerance[inputs["q"].dtype.name]
    assert relative_error(results[0], expected["out"]) < limit
    assert np.array_equal(results[0].view(np.uint16), results[1].view(np.uint16))
    for name in ("k_cache", "v_cache"):
        assert relative_error(to_numpy(tensors[name]), expected[name], unwritten=True) < limit


def test_shares_follow_the_context() -> None:
    """A short context in a long table is cut as evenly as blocks of 16 keys allow; programs beyond
    it write nothing. Sequences: 5, 0, 130 and 1 keys."""
    _, plan, tensors = bound(0, SPLITS=6, BLOCK_N=16, COMBINES=0)
    interpret(*bound(0)[:1], plan, tensors)
    used = np.isfinite(to_numpy(tensors["lse"])[0, :, 0])
    # 129 old keys are nine blocks: five shares of two blocks each, where six would be of one.
    assert used.sum(axis=1).tolist() == [1, 0, 5, 1]


def test_heads_before_rows() -> None:
    """A cache [blocks, Hk, block_size, D], as a view of the spec's layout."""
    attrs, inputs = CASES[2]
    problem = make_problem(SPEC, attrs, inputs)
    tensors = {name: to_torch(array.copy()) for name, array in inputs.items()}
    specs = dict(problem.tensors)
    for name in ("k_cache", "v_cache"):
        moved = tensors[name].permute(0, 2, 1, 3).contiguous()
        view = moved.permute(0, 2, 1, 3)
        specs[name] = TensorSpec(inputs[name].shape, inputs[name].dtype.name, view.stride())
        tensors[name] = moved
    problem = Problem(SPEC.name, specs, attrs)
    target = TARGETS["gfx942"]
    tensors["out"] = to_torch(poisoned(specs["out"]))
    config = {**KERNEL.configs(problem, target)[0], "SPLITS": 2}
    interpret(problem, KERNEL.plan(problem, target, config), tensors)
    got = {"out": to_numpy(tensors["out"])}
    got |= {
        n: np.ascontiguousarray(to_numpy(tensors[n]).transpose(0, 2, 1, 3))
        for n in ("k_cache", "v_cache")
    }
    check(2, got)


def test_refusals() -> None:
    attrs, inputs = CASES[5]
    problem = make_problem(SPEC, attrs, inputs)
    why = KERNEL.supports(problem, TARGETS["sm_80"])
    assert why is not None and "float8_e4m3fn" in why
    for name, spec, word in (
        ("k", TensorSpec((2, 4, 64), "bfloat16"), "k_cache"),
        ("v", TensorSpec((2, 2, 64), "float16"), "one type"),
        ("slots", TensorSpec((3,), "int32"), "3 rows"),
        ("positions", TensorSpec((2,), "float32"), "positions"),
        ("inv_freq", TensorSpec((40,), "float32"), "at most 32"),
        ("q_weight", TensorSpec((64,), "float32"), "both or none"),
    ):
        changed = Problem(SPEC.name, {**problem.tensors, name: spec}, attrs)
        why = KERNEL.supports(changed, TARGETS["sm_90"])
        assert why is not None and word in why
