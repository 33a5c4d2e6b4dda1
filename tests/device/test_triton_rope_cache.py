"""Rotary embedding with normalization and cache append, in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_emulated import launch_emulated
from triton_harness import (
    interpret,
    make_problem,
    relative_error,
    run_case,
    to_numpy,
    to_torch,
)

from pumice.emulator.emulator import Emulator
from pumice.operators.rope_cache.spec import SPEC
from pumice.operators.rope_cache.triton_plan import RopeCache
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import GPU_TARGETS

TARGETS = {target.name: target for target in GPU_TARGETS}
CASES = SPEC.cases(np.random.default_rng(0))
KERNEL = RopeCache()


@pytest.mark.parametrize("index", range(len(CASES)))
@pytest.mark.parametrize("config", [0, -1])
def test_cases(index: int, config: int) -> None:
    attrs, inputs = CASES[index]
    target = TARGETS["sm_90"]
    chosen = KERNEL.configs(make_problem(SPEC, attrs, inputs), target)[config]
    got = run_case(SPEC, KERNEL, attrs, inputs, target, chosen)
    expected = SPEC.reference(attrs, inputs)
    assert got.keys() == expected.keys()
    for name, array in got.items():
        limit = SPEC.tolerance[array.dtype.name]
        assert relative_error(array, expected[name]) < limit, name


def test_rows_without_a_token_stay() -> None:
    attrs, inputs = CASES[0]
    got = run_case(SPEC, KERNEL, attrs, inputs, TARGETS["sm_90"])
    free = np.ones(48, bool)
    free[inputs["slots"][inputs["slots"] >= 0]] = False
    for name in ("k_cache", "v_cache"):
        before = inputs[name].reshape(48, -1).view(np.uint16)
        assert np.array_equal(got[name].reshape(48, -1).view(np.uint16)[free], before[free])


def _views(heads: int, kv_heads: int, dim: int) -> tuple[np.ndarray, dict[str, Any], Problem]:
    """q, k and v inside rows of one product: (rows, the other inputs and expected outputs by name,
    the problem of the views)."""
    rng = np.random.default_rng(dim)
    tokens, width = 5, (heads + 2 * kv_heads) * dim
    rows = rng.standard_normal((tokens, width)).astype(np.float16)
    others = {
        "positions": rng.integers(0, 300, tokens).astype(np.int32),
        "inv_freq": (10000.0 ** (-np.arange(0, dim, 2) / dim)).astype(np.float32),
        "slots": np.array([9, -1, 0, 31, -1], np.int32),
        "k_cache": rng.standard_normal((2, 16, kv_heads, dim)).astype(np.float16),
        "v_cache": rng.standard_normal((2, 16, kv_heads, dim)).astype(np.float16),
    }
    tensors = {name: TensorSpec(array.shape, array.dtype.name) for name, array in others.items()}
    for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        aligned = name == "q" or dim * 2 % 16 == 0
        strides = (width, dim, 1)
        tensors[name] = TensorSpec((tokens, count, dim), "float16", strides, aligned)
    tensors |= SPEC.output_specs({}, tensors)
    return rows, others, Problem(SPEC.name, tensors)


def _expected(rows: np.ndarray, others: dict[str, Any], problem: Problem) -> Any:
    heads, kv_heads, dim = *(problem[n].shape[1] for n in "qk"), problem["q"].shape[2]
    q, k, v = np.split(rows.reshape(len(rows), -1, dim), (heads, heads + kv_heads), axis=1)
    return SPEC.reference({}, {**others, "q": q, "k": k, "v": v})


SIZES = [(6, 3, 16), (3, 1, 32), (9, 3, 64), (5, 1, 80), (3, 1, 20)]


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SIZES)
def test_views_of_one_row(heads: int, kv_heads: int, dim: int) -> None:
    """As a model's product leaves them; a size of 20 is no whole vector, and not taken for one."""
    rows, others, problem = _views(heads, kv_heads, dim)
    target = TARGETS["gfx1100"]
    assert KERNEL.supports(problem, target) is None
    q_out = np.full((len(rows), heads, dim), np.nan, np.float16)
    tensors = {name: to_torch(array.copy()) for name, array in others.items()}
    all_heads = to_torch(rows).view(len(rows), -1, dim)
    parts = all_heads.split((heads, kv_heads, kv_heads), dim=1)
    tensors |= dict(zip("qkv", parts, strict=True)) | {"q_out": to_torch(q_out)}
    interpret(problem, KERNEL.plan(problem, target, KERNEL.configs(problem, target)[0]), tensors)
    for name, expected in _expected(rows, others, problem).items():
        assert relative_error(to_numpy(tensors[name]), expected) < SPEC.tolerance["float16"], name


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [SIZES[0], SIZES[2], SIZES[4]])
def test_views_in_compiled_code(heads: int, kv_heads: int, dim: int, arch: str) -> None:
    rows, others, problem = _views(heads, kv_heads, dim)
    target, emulator = TARGETS[arch], Emulator(arch)
    plan = KERNEL.plan(problem, target, KERNEL.configs(problem, target)[0])
    q_out = np.full((len(rows), heads, dim), np.nan, np.float16)
    addresses = {n: emulator.upload(a) for n, a in {**others, "q_out": q_out}.items()}
    q = emulator.upload(rows)
    addresses |= {"q": q, "k": q + heads * dim * 2, "v": q + (heads + kv_heads) * dim * 2}
    launch_emulated(emulator, problem, plan, addresses, target)
    for name, expected in _expected(rows, others, problem).items():
        got = emulator.download(addresses[name], expected.shape, np.dtype(np.float16))
        assert relative_error(got, expected) < SPEC.tolerance["float16"], name


def test_refusals() -> None:
    attrs, inputs = CASES[4]
    problem = make_problem(SPEC, attrs, inputs)
    why = KERNEL.supports(problem, TARGETS["sm_86"])
    assert why is not None and "float8_e4m3fn" in why
    for name, spec, word in (
        ("inv_freq", TensorSpec((40,), "float32"), "at most 32"),
        ("slots", TensorSpec((8,), "int32"), "8 rows"),
        ("positions", TensorSpec((9,), "float32"), "positions"),
        ("v_cache", TensorSpec((3, 8, 2, 64), "float8_e4m3fn"), "differ"),
        ("k_scale", TensorSpec((3,), "float32"), "k_scale"),
    ):
        changed = Problem(SPEC.name, {**problem.tensors, name: spec}, attrs)
        why = KERNEL.supports(changed, TARGETS["sm_90"])
        assert why is not None and word in why
