"""fused_w4 in Triton's interpreter, against float64: in each vendor's packed instructions and
in plain arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from asm_emulator import create_inline_asm
from triton.runtime.interpreter import InterpreterBuilder
from triton_cases import check, runs
from triton_harness import interpret, make_problem, relative_error, to_numpy, to_torch

from pumice.operators.fused_w4.spec import SPEC, bench_problem
from pumice.operators.fused_w4.triton_plan import Persistent
from pumice.operators.gemm_w4.spec import make_weight
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import get_target

# Devices so small that a program walks over several tiles.
HOPPER = replace(get_target("sm_90"), compute_units=2)
CDNA3 = replace(get_target("gfx942"), compute_units=2)


@pytest.fixture(autouse=True)
def assembly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(InterpreterBuilder, "create_inline_asm", create_inline_asm, raising=False)
    yield


def _small(kernel: Any, attrs: Any, inputs: Any, target: Any) -> dict[str, int]:
    """The favourite configuration, in slices and programs small enough for an interpreter."""
    config = dict(kernel.configs(make_problem(SPEC, attrs, inputs), target)[0])
    return config | {"groups": min(config["groups"], 16), "units": 1}


@pytest.mark.parametrize("target", [HOPPER, CDNA3], ids=lambda t: t.name)
def test_cases(target: Any) -> None:
    for _, kernel, attrs, inputs, target_ in runs(SPEC, (target,)):
        check(SPEC, kernel, attrs, inputs, target_, _small(kernel, attrs, inputs, target_))


@pytest.mark.parametrize(("ahead", "spread"), [(0, 1), (1, 0)])
def test_plain_arithmetic_and_other_tiles(ahead: int, spread: int) -> None:
    """K in slices of 8 groups; more waves than a row needs; both ways to read activations."""
    config = {"groups": 8, "rows": 8, "warps": 4, "units": 3, "ahead": ahead, "early": 0, "code": 0}
    config["spread"] = spread
    for attrs, inputs in SPEC.cases(np.random.default_rng(3)):
        if inputs["x"].size < 700:  # the interpreter is slow
            check(SPEC, Persistent(), attrs, inputs, CDNA3, config)


def test_strided_activations_and_results() -> None:
    """Rows of x, of the residual stream and of out inside wider tensors."""
    rng = np.random.default_rng(2)
    weight = make_weight(rng, 12, 64, 32)
    gain = rng.uniform(0.5, 1.5, 64).astype(np.float32)
    wide = rng.standard_normal((3, 96)).astype(np.float32)
    attrs = {"group": 32, "zero": 7, "packing": "rows", "eps": 1e-5, "dtype": "float16"}
    for name, dtype in (("out", "float16"), ("residual", "float32")):
        before = np.zeros((3, 20), dtype)
        before[:, 12:] = 7
        arrays = {**weight, "norm_weight": gain}
        specs = {n: TensorSpec(a.shape, a.dtype.name) for n, a in arrays.items()}
        specs["x"] = TensorSpec((3, 64), "float32", (96, 1))
        specs[name] = TensorSpec((3, 12), dtype, (20, 1))
        problem = Problem("fused_w4", specs, attrs)
        config = dict(Persistent().configs(problem, CDNA3)[0]) | {"groups": 2}
        tensors = {n: to_torch(a) for n, a in arrays.items()}
        tensors |= {"x": to_torch(wide)[:, 8:], name: to_torch(before)}
        interpret(problem, Persistent().plan(problem, CDNA3, config), tensors)
        got = to_numpy(tensors[name])
        expected = SPEC.reference(attrs, {**arrays, "x": wide[:, 8:72]})["out"]
        assert relative_error(got[:, :12], expected) < 2e-3
        assert (got[:, 12:] == 7).all()


def test_refusals_say_what_is_allowed() -> None:
    def reason(*parts: str, m: int = 1, n: int = 64, k: int = 256, **changes: Any) -> str:
        _, attrs, inputs = bench_problem(m, n, k, *parts)
        inputs |= changes.pop("specs", {})
        return str(Persistent().supports(Problem("fused_w4", inputs, {**attrs, **changes}), HOPPER))

    assert reason("norm", "silu") == reason("residual") == "None"
    assert "at most 8" in reason(m=9)
    assert "at most 4 are normed" in reason("norm", m=5)
    assert "do not fit in" in reason(m=8, k=32768)
    assert "'silu' of even ones" in reason("silu", n=63)
    assert "activation 'gelu'" in reason(activation="gelu")
    assert "not added" in reason("silu", "residual")
    assert "float32, which is normed" in reason(
        "norm", specs={"x": TensorSpec((1, 256), "float16")}
    )
    assert "dtype 'int8'" in reason("norm", dtype="int8")
    assert "'rows'" in reason(packing="blocks")
    assert "not float32(1, 64)" in reason(
        "residual", specs={"residual": TensorSpec((1, 64), "float16")}
    )
