"""Hopper's attention as NumPy, against float64: tiles from a counter, rings that are waited for and
given back, masks, ragged ends, caches whose blocks are looked up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gluon_numpy import run
from gluon_rings import Attention
from triton_harness import make_problem, poisoned, relative_error

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.flash_attention.hopper_plan import FlashAttentionHopper
from pumice.operators.flash_attention.spec import SPEC as FLASH
from pumice.operators.paged_prefill.hopper_plan import PagedPrefillHopper
from pumice.operators.paged_prefill.spec import SPEC as PREFILL
from pumice.targets import get_target

HOPPER = replace(get_target("sm_90"), compute_units=3)


def check(spec: OperatorSpec, kernel: Any, attrs: Any, inputs: Any) -> None:
    problem = make_problem(spec, attrs, inputs)
    assert kernel.supports(problem, HOPPER) is None, kernel.supports(problem, HOPPER)
    config = kernel.configs(problem, HOPPER)[0]
    plan = kernel.plan(problem, HOPPER, config)
    arrays = {
        name: inputs[name].copy() if name in inputs else poisoned(given)
        for name, given in {**problem.tensors, **plan.workspaces}.items()
    }
    for name in plan.zeroed:
        arrays[name][...] = 0
    for _ in range(2):  # the counter is as it was
        for launch in plan.launches:
            run(launch, arrays, Attention)
        for name in plan.restored:
            assert not arrays[name].any()
    wanted = spec.reference(attrs, inputs)
    for name, values in wanted.items():
        error = relative_error(arrays[name], values)
        assert error <= spec.tolerance[inputs["q"].dtype.name], (name, error)


def starts(lengths: list[int]) -> np.ndarray:
    return np.cumsum([0, *lengths]).astype(np.int32)


FLASH_CASES: list[tuple[str, tuple[int, int, int], list[int], list[int], dict[str, Any]]] = [
    ("bfloat16", (2, 1, 128), [130, 1, 0, 77], [260, 70, 5, 30], {"causal": True, "lse": True}),
    ("float16", (2, 2, 128), [200], [300], {}),
    ("float16", (1, 1, 128), [150], [400], {"causal": True, "window_left": 140, "softcap": 20.0}),
    ("bfloat16", (2, 1, 256), [70, 60], [90, 130], {"causal": True, "sinks": True, "lse": True}),
]


@pytest.mark.parametrize("case", FLASH_CASES, ids=str)
def test_flash(case: Any) -> None:
    dtype, (heads, kv_heads, dim), queries, keys, attrs = case
    rng = np.random.default_rng(1)
    attrs = dict(attrs)
    inputs = {
        name: rng.standard_normal((sum(rows), count, dim)).astype(numpy_dtype(dtype))
        for name, rows, count in zip(
            "qkv", (queries, keys, keys), (heads, kv_heads, kv_heads), strict=True
        )
    }
    inputs |= {"cu_seqlens_q": starts(queries), "cu_seqlens_k": starts(keys)}
    if attrs.pop("sinks", False):
        inputs["sinks"] = rng.standard_normal(heads).astype(np.float32)
    check(FLASH, FlashAttentionHopper(), attrs, inputs)


@pytest.mark.parametrize(("page", "window"), [(16, None), (32, 99), (256, None)])
def test_paged(page: int, window: int | None) -> None:
    rng = np.random.default_rng(page)
    queries, contexts = [140, 0, 60], [300, 7, 61]
    width = -(-max(contexts) // page) + 1
    blocks = len(contexts) * width + 1
    table = np.full((len(contexts), width), 2**30, np.int32)
    empty = np.full((blocks, page, 1, 128), np.nan, np.float16)
    caches = {name: empty.copy() for name in ("k_cache", "v_cache")}
    free = iter(rng.permutation(blocks).tolist())
    for sequence, context in enumerate(contexts):
        for i in range(-(-context // page)):
            table[sequence, i] = block = next(free)
            for cache in caches.values():
                rows = min(page, context - i * page)
                cache[block, :rows] = rng.standard_normal((rows, 1, 128)).astype(np.float16)
    inputs = {
        "q": rng.standard_normal((sum(queries), 2, 128)).astype(np.float16),
        **caches,
        "block_table": table,
        "context_len": np.array(contexts, np.int32),
        "query_start": starts(queries),
    }
    attrs = {} if window is None else {"window_left": window}
    check(PREFILL, PagedPrefillHopper(), attrs, inputs)
