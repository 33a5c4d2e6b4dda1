"""Hopper's warp-specialized products as NumPy, against float64: buffers that are waited for and
given back, tiles that end inside, how units share blocks of K and hand sums over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gluon_numpy import run
from gluon_warps import Warps
from triton_harness import make_problem, poisoned, relative_error

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.gemm.hopper_plan import GemmSpecialized, GemmStreamed
from pumice.operators.gemm.spec import SPEC
from pumice.operators.gemm.stretches import units_of
from pumice.operators.gemm_w4.hopper_prompt import Prompt
from pumice.operators.gemm_w4.spec import SPEC as W4
from pumice.operators.gemm_w4.spec import bench_problem, make_weight
from pumice.operators.triton.plan import make_problem as make_w4_problem
from pumice.targets import get_target

HOPPER = get_target("sm_90")


def _check(
    spec: OperatorSpec, kernel: Any, attrs: Any, inputs: Any, units: int,
    change: Mapping[str, int] = {}, **config: int,
) -> np.ndarray:  # fmt: skip
    problem = make_problem(spec, attrs, inputs)
    target = replace(HOPPER, compute_units=units)
    assert kernel.supports(problem, target) is None, kernel.supports(problem, target)
    chosen = next(
        c
        for c in kernel.configs(problem, target)
        if all(c[name] == value for name, value in config.items())
    )
    plan = kernel.plan(problem, target, {**chosen, **change})
    arrays = {
        name: inputs[name].copy() if name in inputs else poisoned(tensor)
        for name, tensor in problem.tensors.items()
    }
    for name, tensor in plan.workspaces.items():
        arrays[name] = np.zeros_like(poisoned(tensor)) if name in plan.zeroed else poisoned(tensor)
    for launch in plan.launches:
        run(launch, arrays, Warps)
    for name in plan.restored:
        assert not arrays[name].any()
    error = relative_error(arrays["out"], spec.reference(attrs, inputs)["out"])
    assert error <= spec.tolerance[arrays["out"].dtype.name], error
    return arrays["out"]


def _dense(m: int, n: int, k: int, dtype: str, *parts: str) -> tuple[Any, dict[str, np.ndarray]]:
    rng = np.random.default_rng(m * n + k)
    inputs = {
        name: rng.standard_normal(shape, np.float32).astype(numpy_dtype(dtype))
        for name, shape in (("x", (m, k)), ("w", (n, k)), ("bias", (n,)), ("residual", (m, n)))
        if name in ("x", "w", *parts)
    }
    return {"activation": "relu"} if "relu" in parts else {}, inputs


@pytest.mark.parametrize("bn", [128, 192, 256])
@pytest.mark.parametrize(
    ("units", "case"),
    [(3, (300, 1000, 320, "float16")), (2, (256, 520, 144, "bfloat16", "bias", "residual"))],
    ids=str,
)
def test_whole_tiles(units: int, case: Any, bn: int) -> None:
    attrs, inputs = _dense(*case)
    _check(SPEC, GemmSpecialized(), attrs, inputs, units, BN=bn, early=1)


@pytest.mark.parametrize("bn", [128, 256])
@pytest.mark.parametrize(
    ("units", "case"),
    [
        (6, (200, 600, 448, "bfloat16", "residual")),
        (13, (256, 520, 208, "float16", "bias")),  # a tile is shared by three and more
        (132, (140, 100, 192, "bfloat16")),  # as many units as blocks
    ],
    ids=str,
)
def test_shared_blocks(units: int, case: Any, bn: int) -> None:
    attrs, inputs = _dense(*case)
    _check(SPEC, GemmStreamed(), attrs, inputs, units, BN=bn, early=0)


def test_whole_tiles_where_they_are_done_first() -> None:
    for strips, blocks, most in ((32, 172, 33), (32, 64, 66), (96, 64, 4), (5, 3, 7), (1, 1, 132)):
        units = units_of(strips, blocks, most)
        assert 1 <= units <= min(most, strips * blocks)
        assert units == min(most, strips * blocks) or strips % units == 0
    assert units_of(32, 172, 33) == 32
    assert units_of(20, 216, 33) == 33


def test_nothing_to_share() -> None:
    attrs, inputs = _dense(129, 300, 320, "float16")
    problem = make_problem(SPEC, attrs, inputs)
    reason = GemmStreamed().supports(problem, replace(HOPPER, compute_units=3))
    assert "no two share a row" in str(reason)


@pytest.mark.parametrize("tile", [(256, 128), (128, 128)], ids=str)
@pytest.mark.parametrize(
    ("units", "case"),
    [
        (4, (130, 300, 384, 32, "", "float16")),
        (5, (70, 520, 256, 64, "mins", "float16")),
        (7, (129, 200, 512, 128, "", "bfloat16")),
        (9, (128, 260, 256, 32, "mins", "bfloat16")),
        (8, (460, 300, 384, 32, "", "float16")),
    ],
    ids=str,
)
def test_decoded_on_the_way(units: int, case: Any, tile: tuple[int, int]) -> None:
    m, n, k, group, offset, dtype = case
    rng = np.random.default_rng(n + k)
    x = rng.standard_normal((m, k)).astype(numpy_dtype(dtype))
    inputs = {"x": x, **make_weight(rng, n, k, group, offset)}
    if m == 130:
        inputs["bias"] = rng.standard_normal(n).astype(numpy_dtype(dtype))
    attrs = {"group": group, "zero": 0 if offset else 7, "packing": "rows"}
    # What brings words to the second cache changes no number, and NumPy has none.
    _check(W4, Prompt(), attrs, inputs, units, BM=tile[0], BN=tile[1], change={"ahead": 0})


def test_larger_tiles_come_first_where_they_are_full() -> None:
    for tokens, first in ((65, 128), (128, 128), (129, 256), (256, 256), (2048, 256)):
        _, attrs, inputs = bench_problem(tokens, 4096, 4096, packing="rows")
        problem = make_w4_problem(W4, attrs, inputs)
        assert Prompt().configs(problem, HOPPER)[0]["BM"] == first
