"""Attention over paged caches in Triton's interpreter: decode and chunks."""

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

from pumice.operators.paged_attention.spec import SPEC as DECODE
from pumice.operators.paged_attention.triton_plan import PagedAttention
from pumice.operators.paged_prefill.spec import SPEC as PREFILL
from pumice.operators.paged_prefill.triton_plan import PagedPrefill
from pumice.operators.triton.plan import Plan, Problem, TensorSpec
from pumice.targets import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
CASES = [
    (spec, kernel, attrs, inputs)
    for spec, kernel in ((DECODE, PagedAttention()), (PREFILL, PagedPrefill()))
    for attrs, inputs in spec.cases(np.random.default_rng(0))
]


def check(index: int, got: np.ndarray) -> None:
    spec, _, attrs, inputs = CASES[index]
    limit = spec.tolerance[inputs["q"].dtype.name]
    assert relative_error(got, spec.reference(attrs, inputs)["out"]) < limit


@pytest.mark.parametrize("index", range(len(CASES)))
def test_cases(index: int) -> None:
    """Targets take turns: they differ in tile sizes only."""
    spec, kernel, attrs, inputs = CASES[index]
    target = TARGETS[("sm_90", "gfx1100", "gfx942", "gfx1201")[index % 4]]
    check(index, run_case(spec, kernel, attrs, inputs, target)["out"])


@pytest.mark.parametrize("index", [0, 4, 11, 14])
def test_shares_of_the_keys(index: int) -> None:
    """Three shares, some of them empty; a slice of the values' columns a program."""
    spec, kernel, attrs, inputs = CASES[index]
    target = TARGETS["gfx1100"]
    favourite = kernel.configs(make_problem(spec, attrs, inputs), target)[0]
    config = {**favourite, "SPLITS": 3, "BLOCK_V": 64, "BLOCK_N": 32}
    check(index, run_case(spec, kernel, attrs, inputs, target, config)["out"])


@pytest.mark.parametrize("splits", [1, 2])
def test_heads_before_rows(splits: int) -> None:
    """A cache [blocks, Hk, block_size, D], as a view of the spec's layout; two runs are equal."""
    spec, kernel, attrs, inputs = CASES[2]
    target = TARGETS["gfx942"]
    problem = make_problem(spec, attrs, inputs)
    tensors = {name: to_torch(array) for name, array in inputs.items()}
    specs = dict(problem.tensors)
    for name in ("k_cache", "v_cache"):
        moved = tensors[name].permute(0, 2, 1, 3).contiguous()
        specs[name] = TensorSpec(
            inputs[name].shape, inputs[name].dtype.name, moved.permute(0, 2, 1, 3).stride()
        )
        tensors[name] = moved
    problem = Problem(spec.name, specs, attrs)
    config = {**kernel.configs(problem, target)[0], "SPLITS": splits}
    results = []
    for _ in range(2):
        tensors["out"] = to_torch(poisoned(specs["out"]))
        interpret(problem, kernel.plan(problem, target, config), tensors)
        results.append(to_numpy(tensors["out"]))
    check(2, results[0])
    assert np.array_equal(results[0].view(np.uint16), results[1].view(np.uint16))


def test_refusals() -> None:
    _, kernel, attrs, inputs = CASES[5]
    problem = make_problem(DECODE, attrs, inputs)
    why = kernel.supports(problem, TARGETS["sm_80"])
    assert why is not None and "float8_e4m3fn" in why
    for name, spec, word in (
        ("q", TensorSpec((2, 8, 64), "float32"), "float32"),
        ("q", TensorSpec((3, 8, 64), "bfloat16"), "3 rows"),
        ("context_len", TensorSpec((2,), "int64"), "int64"),
        ("k_scale", TensorSpec((3,), "float32"), "k_scale"),
        ("v_cache", TensorSpec((4, 16, 1, 64), "float8_e4m3fn"), "do not fit"),
    ):
        changed = Problem(DECODE.name, {**problem.tensors, name: spec}, attrs)
        why = kernel.supports(changed, TARGETS["sm_90"])
        assert why is not None and word in why


CHUNKS = next(index for index, case in enumerate(CASES) if case[0] is PREFILL)


def workspaces_of(problem: Problem, plan: Plan, inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """All tensors after a run, workspaces included."""
    arrays = {
        name: inputs[name].copy() if name in inputs else poisoned(spec)
        for name, spec in (*problem.tensors.items(), *plan.workspaces.items())
    }
    tensors = {name: to_torch(array) for name, array in arrays.items()}
    interpret(problem, replace(plan, workspaces={}), tensors)
    return {name: to_numpy(tensor) for name, tensor in tensors.items()}


def test_shares_follow_the_context() -> None:
    """Of six shares a context has as many as it needs, however wide its table is. Contexts: 5, 0
    and 130 keys; blocks of 16, so nine blocks are five shares of two."""
    spec, kernel, attrs, inputs = CASES[0]
    wide = dict(inputs, block_table=np.pad(inputs["block_table"], ((0, 0), (0, 500))))
    problem = make_problem(spec, attrs, wide)
    config = {**kernel.configs(problem, TARGETS["sm_90"])[0], "SPLITS": 6, "BLOCK_N": 16}
    found = workspaces_of(problem, kernel.plan(problem, TARGETS["sm_90"], config), wide)
    assert np.isfinite(found["lse"][:, 0]).sum(axis=1).tolist() == [1, 0, 5]
    check(0, found["out"])


def test_shares_of_a_chunk_follow_its_context() -> None:
    """Contexts of 5, 3 and 70 keys, of which the second has no query; blocks of 16, three shares:
    70 keys are five blocks, two a share."""
    spec, kernel, attrs, inputs = CASES[CHUNKS]
    problem = make_problem(spec, attrs, inputs)
    config = {**kernel.configs(problem, TARGETS["sm_90"])[0], "SPLITS": 3, "BLOCK_N": 16}
    found = workspaces_of(problem, kernel.plan(problem, TARGETS["sm_90"], config), inputs)
    check(CHUNKS, found["out"])
    shares = np.isfinite(found["lse"][:, 0]).sum(axis=1)
    assert shares[:5].tolist() == [1] * 5 and shares[-1] == 3


def test_a_batch_padded_with_empty_sequences() -> None:
    """As in a compiled plan, most sequences have no query and no key. The chunk's tiles
    are no smaller for them, and its 70 keys, five blocks, go to as many programs."""
    spec, kernel, attrs, inputs = CASES[CHUNKS]
    count = 40
    tokens = int(inputs["query_start"][-1])
    padded = dict(
        inputs,
        query_start=np.pad(inputs["query_start"], (0, count), constant_values=tokens),
        context_len=np.pad(inputs["context_len"], (0, count)),
        block_table=np.pad(inputs["block_table"], ((0, count), (0, 0))),
    )
    for name in ("sm_90", "gfx942", "gfx1100"):
        problem = make_problem(spec, attrs, padded)
        config = kernel.configs(problem, TARGETS[name])[0]
        assert config["BLOCK_M"] == 64
        config = {**config, "BLOCK_N": 16}
        plan = kernel.plan(problem, TARGETS[name], config)
        # One program for each tile that there may be; those without rows take shares of the keys.
        assert config["SPARE"] and plan.launches[0].grid[0] == tokens // (64 // 3) + 3 + count
        found = workspaces_of(problem, plan, padded)
        check(CHUNKS, found["out"])
        shares = np.isfinite(found["lse"][:, 0]).sum(axis=1)
        assert shares[-1] == 5 and np.isneginf(found["lse"][-1, 0, 5:]).all()
