"""The kernel for few rows of x, written in Gluon, run as NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gluon_numpy import run
from gluon_warps import Warps

from pumice.dtypes import numpy_dtype
from pumice.operators.gemm.few_rows import GemmFewRows
from pumice.operators.gemm.spec import SPEC, reference
from pumice.operators.triton.plan import TensorSpec, make_problem
from pumice.targets import get_target

_SMALL = {"rows": 64, "BK": 64, "stages": 3, "x_stages": 2, "warps": 4, "split": 0, "early": 2}


def _case(m: int, n: int, k: int, dtype: Any, attrs: dict[str, Any], extra: str) -> Any:
    rng = np.random.default_rng(m * n + k)
    inputs = {
        "x": rng.standard_normal((m, k), np.float32).astype(dtype),
        "w": (rng.standard_normal((n, k), np.float32) / k**0.5).astype(dtype),
    }
    if "bias" in extra:
        inputs["bias"] = rng.standard_normal(n, np.float32).astype(dtype)
    if "residual" in extra:
        inputs["residual"] = rng.standard_normal((m, n), np.float32).astype(dtype)
    return attrs, inputs


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "attrs", "extra", "units"),
    [
        (1, 769, 64, ml_dtypes.bfloat16, {}, "", 132),
        (3, 100, 1000, np.float16, {}, "bias", 7),
        (8, 64, 2048, ml_dtypes.bfloat16, {"activation": "silu"}, "", 5),
        (17, 333, 328, ml_dtypes.bfloat16, {"activation": "relu"}, "bias residual", 3),
        (64, 130, 136, np.float16, {"out_dtype": "float32"}, "residual", 4),
        (33, 129, 8, ml_dtypes.bfloat16, {}, "", 2),
        (2, 1024, 256, ml_dtypes.bfloat16, {"activation": "gelu_tanh"}, "bias", 11),
    ],
)
def test_against_float64(
    m: int, n: int, k: int, dtype: Any, attrs: Any, extra: str, units: int
) -> None:
    from dataclasses import replace

    attrs, inputs = _case(m, n, k, dtype, attrs, extra)
    target = replace(get_target("sm_90"), compute_units=units)
    specs = {a: TensorSpec(v.shape, v.dtype.name) for a, v in inputs.items()}
    problem = make_problem(SPEC, attrs, specs)
    kernel = GemmFewRows()
    assert kernel.supports(problem, target) is None
    plan = kernel.plan(problem, target, _SMALL)
    arrays = dict(inputs)
    arrays["out"] = np.full((m, n), np.nan, numpy_dtype(problem["out"].dtype))
    for name, spec in plan.workspaces.items():
        arrays[name] = np.zeros(spec.shape, numpy_dtype(spec.dtype))
        if name not in plan.zeroed and spec.dtype == "float32":
            arrays[name][...] = np.nan
    for launch in plan.launches:
        run(launch, arrays, Warps)
    expected = reference(attrs, inputs)["out"]
    error = np.linalg.norm(arrays["out"].astype(np.float64) - expected)
    assert error <= SPEC.tolerance[problem["out"].dtype] * np.linalg.norm(expected)
    assert not arrays["flags"].any()  # for the next run
