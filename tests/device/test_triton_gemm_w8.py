"""gemm_w8 in Triton's interpreter, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_cases import check, runs
from triton_harness import make_problem

from pumice.operators.gemm_w8.spec import SPEC
from pumice.operators.gemm_w8.triton_plan import Gemv, Tiled
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import get_target

HOPPER = get_target("sm_90")
RUNS = list(runs(SPEC, (HOPPER,)))


@pytest.mark.parametrize("run", RUNS, ids=[run[0] for run in RUNS])
def test_case(run: Any) -> None:
    check(SPEC, *run[1:])


@pytest.mark.parametrize(
    ("kernel", "config"),
    [
        (Gemv(), {"rows": 2, "block": 64, "warps": 1, "stages": 1}),
        (Tiled(), {"bm": 16, "bn": 32, "bk": 64, "warps": 2, "stages": 2, "split": 2}),
    ],
    ids=["gemv", "tiled"],
)
def test_another_configuration(kernel: Any, config: dict[str, int]) -> None:
    for attrs, inputs in SPEC.cases(np.random.default_rng(3)):
        if kernel.supports(make_problem(SPEC, attrs, inputs), HOPPER) is None:
            if inputs["w"].size < 10000:
                check(SPEC, kernel, attrs, inputs, HOPPER, config)


def test_refusals_say_what_is_allowed() -> None:
    def reason(out_dtype: str = "float16", group: int = 32, **changes: TensorSpec) -> str:
        specs = {
            "x": TensorSpec((9, 256), "float16"),
            "w": TensorSpec((8, 256), "int8"),
            "scales": TensorSpec((8, 8), "float16"),
            **changes,
        }
        attrs = {"group": group, "out_dtype": out_dtype}
        return str(Gemv().supports(Problem("gemm_w8", specs, attrs), HOPPER))

    assert "at most 8" in reason()
    assert "out_dtype 'int8'" in reason(out_dtype="int8")
    assert "int8[N, 256]" in reason(w=TensorSpec((8, 128), "int8"))
    assert "group 8 must be" in reason(group=8)
    assert "mins must be" in reason(mins=TensorSpec((8, 4), "float16"))
    assert "float16(8, 8)" in reason(scales=TensorSpec((8, 4), "float16"))
