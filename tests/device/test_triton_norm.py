"""norm in Triton's interpreter, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_cases import check, runs
from triton_harness import interpret, make_problem, poisoned, relative_error, to_numpy, to_torch

from pumice.operators.norm.spec import SPEC
from pumice.operators.norm.triton_plan import NormLoop, NormRows
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import get_target

HOPPER, CDNA3 = get_target("sm_90"), get_target("gfx942")
RUNS = list(runs(SPEC, (HOPPER, CDNA3)))


@pytest.mark.parametrize("run", RUNS, ids=[run[0] for run in RUNS])
def test_case(run: Any) -> None:
    check(SPEC, *run[1:])


@pytest.mark.parametrize(
    ("kernel", "config"),
    [(NormRows(), {"rows": 2, "warps": 4}), (NormLoop(), {"block": 128, "warps": 4})],
)
def test_another_configuration(kernel: Any, config: dict[str, int]) -> None:
    """Several rows a program with a last partial program; several blocks a row."""
    for attrs, inputs in SPEC.cases(np.random.default_rng(3)):
        problem = make_problem(SPEC, attrs, inputs)
        if inputs["x"].shape[1] > 1000 or kernel.supports(problem, HOPPER):
            continue
        check(SPEC, kernel, attrs, inputs, HOPPER, config)


@pytest.mark.parametrize("kernel", [NormRows(), NormLoop()])
def test_rows_of_a_view(kernel: Any) -> None:
    """x is columns 3 … 102 of a wider array; nothing around the output is touched."""
    rng = np.random.default_rng(5)
    wide = rng.standard_normal((4, 160)).astype(np.float16)
    view = wide[:, 3:103]
    out = poisoned(TensorSpec((4, 120), "float16"))
    strided = {
        "x": TensorSpec((4, 100), "float16", (160, 1), aligned=False),
        "out": TensorSpec((4, 100), "float16", (120, 1)),
    }
    problem = Problem("norm", strided, {"kind": "rms", "eps": 1e-6})
    plan = kernel.plan(problem, HOPPER, kernel.configs(problem, HOPPER)[0])
    tensors = {"x": to_torch(wide)[:, 3:], "out": to_torch(out)}
    interpret(problem, plan, tensors)
    got = to_numpy(tensors["out"])
    expected = SPEC.reference(problem.attrs, {"x": view})["out"]
    assert relative_error(got[:, :100], expected) < 1e-3
    assert np.isnan(got[:, 100:].astype(np.float32)).all()


def test_refusals_say_what_is_allowed() -> None:
    def reason(target: str = "sm_90", width: int = 256, **attrs: Any) -> str | None:
        specs = {"x": TensorSpec((2, width), attrs.pop("dtype", "float16"), attrs.pop("s", None))}
        return NormRows().supports(
            Problem("norm", specs, {"kind": "rms", "eps": 1e-5, **attrs}), get_target(target)
        )

    assert reason() is None
    assert "last must be 1" in str(reason(s=(1, 2)))
    assert "allowed: float16" in str(reason(dtype="int8"))
    assert "'rms', 'layer'" in str(reason(kind="batch"))
    assert "out_dtype 'int8'" in str(reason(out_dtype="int8"))
    assert "at most 16384" in str(reason(width=20000))
    assert "int8 works" in str(reason("sm_80", quantize="token", out_dtype="float8_e4m3fn"))
    assert "e4m3fn works" in str(reason("gfx950", quantize="token", out_dtype="float8_e4m3fnuz"))
