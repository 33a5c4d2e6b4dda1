"""gemm_fp8_block's kernel for Hopper, as NumPy, against float64: which tiles a program does,
buffers that are filled, used and given back, groups of which one is behind, results that leave
late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gluon_numpy import run
from gluon_warps import Warps
from triton_harness import make_problem, poisoned, relative_error

from pumice.operators.gemm_fp8_block.hopper_plan import BlockSpecialized
from pumice.operators.gemm_fp8_block.spec import SPEC
from pumice.operators.triton.plan import cdiv
from pumice.targets import get_target

HOPPER = get_target("sm_90")
KERNEL = BlockSpecialized()


def _inputs(m: int, n: int, k: int, *parts: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    rng = np.random.default_rng(m * n + k)
    inputs = {
        name: rng.standard_normal((rows, k), np.float32).astype(ml_dtypes.float8_e4m3fn)
        for name, rows in (("x", m), ("w", n))
    } | {
        name: np.exp(rng.standard_normal((rows, cdiv(k, 128)), np.float32))
        for name, rows in (("x_scale", m), ("w_scale", cdiv(n, 128)))
    }  # fmt: skip
    attrs: dict[str, Any] = {"out_dtype": "float16"} if "float16" in parts else {}
    if "silu" in parts:
        attrs["activation"] = "silu"
    if "bias" in parts:
        inputs["bias"] = rng.standard_normal(n, np.float32).astype(ml_dtypes.bfloat16)
    if "residual" in parts:
        inputs["residual"] = rng.standard_normal((m, n), np.float32)
    return attrs, inputs


@pytest.mark.parametrize(("columns", "skew"), [(128, 0), (192, 0), (256, 0), (256, 1), (256, 3)])
@pytest.mark.parametrize(
    ("units", "case"),
    [
        (2, (300, 456, 256)),
        (3, (129, 584, 640, "silu")),
        (1, (256, 320, 128, "bias", "float16")),
        (4, (140, 301, 144, "residual", "bias")),
        (2, (257, 448, 896, "float16")),
    ],
    ids=str,
)  # fmt: skip
def test_tiles(units: int, case: Any, columns: int, skew: int) -> None:
    attrs, inputs = _inputs(*case)
    problem = make_problem(SPEC, attrs, inputs)
    target = replace(HOPPER, compute_units=units)
    assert KERNEL.supports(problem, target) is None
    config = next(
        c for c in KERNEL.configs(problem, target) if (c["BN"], c["skew"]) == (columns, skew)
    )
    plan = KERNEL.plan(problem, target, config)
    out = poisoned(problem["out"])
    arrays = {**inputs, "out": out}
    for name, spec in plan.workspaces.items():
        arrays[name] = poisoned(spec)
    for launch in plan.launches:
        run(launch, arrays, Warps)
    expected = SPEC.reference(attrs, inputs)["out"]
    assert relative_error(out, expected) <= SPEC.tolerance[out.dtype.name]
