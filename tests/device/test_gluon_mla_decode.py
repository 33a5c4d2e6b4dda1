"""Hopper's decode attention over a latent cache as NumPy, against float64: parts of blocks that are
waited for and given back, ragged ends, shares of the keys, blocks that are looked up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gluon_numpy import run
from gluon_rings import Attention
from triton_harness import interpret, make_problem, poisoned, relative_error, to_torch

from pumice.dtypes import numpy_dtype
from pumice.operators.mla_decode.hopper_plan import MlaDecodeHopper
from pumice.operators.mla_decode.spec import BENCH, SPEC
from pumice.operators.triton.plan import Plan
from pumice.operators.triton.plan import make_problem as make
from pumice.targets import get_target

HOPPER = replace(get_target("sm_90"), compute_units=3)
KERNEL = MlaDecodeHopper()


def latents(
    rng: np.random.Generator, dtype: str, heads: int, dim_v: int, page: int, contexts: list[int]
) -> dict[str, Any]:
    """Inputs whose cache is no number where it holds no token, and whose table ends in nonsense."""
    kind, dim = numpy_dtype(dtype), dim_v + 64
    width = -(-max(contexts) // page) + 1
    blocks = len(contexts) * width
    cache = np.full((blocks, page, dim), np.nan, kind)
    table = np.full((len(contexts), width), 2**30, np.int32)
    free = iter(rng.permutation(blocks).tolist())
    for sequence, context in enumerate(contexts):
        for i in range(-(-context // page)):
            table[sequence, i] = block = next(free)
            rows = min(page, context - i * page)
            cache[block, :rows] = rng.standard_normal((rows, dim)).astype(kind)
    return {
        "q": rng.standard_normal((len(contexts), heads, dim)).astype(kind),
        "k_cache": cache,
        "block_table": table,
        "context_len": np.array(contexts, np.int32),
    }


CASES: list[tuple[str, int, int, int, list[int], int]] = [
    # dtype, heads, latent, block size, contexts, shares
    ("bfloat16", 64, 512, 64, [130], 1),
    ("float16", 80, 256, 16, [0, 1, 17, 63, 64, 65, 300], 1),
    ("bfloat16", 16, 256, 64, [200, 0, 1, 129], 3),
    ("float16", 32, 256, 128, [333, 64], 2),
    ("float16", 3, 256, 32, [97], 1),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cases(case: Any) -> None:
    dtype, heads, dim_v, page, contexts, splits = case
    inputs = latents(np.random.default_rng(heads), dtype, heads, dim_v, page, contexts)
    attrs = {"value_dim": dim_v, "scale": 0.1}
    problem = make_problem(SPEC, attrs, inputs)
    assert KERNEL.supports(problem, HOPPER) is None
    plan = KERNEL.plan(problem, HOPPER, {"SPLITS": splits})
    arrays = {
        name: inputs[name] if name in inputs else poisoned(given)
        for name, given in {**problem.tensors, **plan.workspaces}.items()
    }
    run(plan.launches[0], arrays, Attention)
    rest = Plan(plan.launches[1:])
    interpret(problem, rest, {name: to_torch(array) for name, array in arrays.items()})
    error = relative_error(arrays["out"], SPEC.reference(attrs, inputs)["out"])
    assert error <= SPEC.tolerance[dtype], error


def test_counts_of_shares() -> None:
    """Even work for all compute units, none without keys."""
    target = get_target("sm_90")
    rows = {label: make(SPEC, attrs, tensors) for label, attrs, tensors in BENCH}
    for label, first in (
        ("DeepSeek-V3 128 heads 128×4096", 1),
        ("DeepSeek-V3 128 heads 32×4096", 2),
        ("DeepSeek-V3 32 heads 64×4096", 2),
    ):
        assert KERNEL.configs(rows[label], target)[0] == {"SPLITS": first}, label
