"""gemm_w4 and dequantize_w4 in Triton's interpreter, against float64: in plain arithmetic, and in
each vendor's packed instructions, emulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from asm_emulator import create_inline_asm
from triton.runtime.interpreter import InterpreterBuilder
from triton_cases import check, runs
from triton_harness import interpret, make_problem, relative_error, to_numpy, to_torch

from pumice.operators.gemm_w4.dequantize_spec import SPEC as DEQUANTIZE_SPEC
from pumice.operators.gemm_w4.spec import SPEC, make_weight
from pumice.operators.gemm_w4.triton_plan import Gemv, Matrix, Tiled
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import get_target

HOPPER, CDNA3 = get_target("sm_90"), get_target("gfx942")


def _runs(target: Any) -> list[Any]:
    specs = (SPEC, DEQUANTIZE_SPEC)
    return [(label, spec, *rest) for spec in specs for label, *rest in runs(spec, (target,))]


@pytest.fixture(autouse=True)
def assembly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(InterpreterBuilder, "create_inline_asm", create_inline_asm, raising=False)
    yield


def _small(kernel: Any, spec: Any, attrs: Any, inputs: Any, target: Any) -> dict[str, int]:
    """The favourite configuration with programs small enough for an interpreter."""
    config = dict(kernel.configs(make_problem(spec, attrs, inputs), target)[0])
    if isinstance(kernel, Gemv):
        config |= {"groups": min(config["groups"], 32)}
    return config


RUNS = _runs(HOPPER)


@pytest.mark.parametrize("run", RUNS, ids=[run[0] for run in RUNS])
def test_nvidia(run: Any) -> None:
    _, spec, kernel, attrs, inputs, target = run
    check(spec, kernel, attrs, inputs, target, _small(kernel, spec, attrs, inputs, target))


AMD = [run for run in _runs(CDNA3) if isinstance(run[2], Gemv)]


@pytest.mark.parametrize("run", AMD, ids=[run[0] for run in AMD])
def test_amd(run: Any) -> None:
    _, spec, kernel, attrs, inputs, target = run
    check(spec, kernel, attrs, inputs, target, _small(kernel, spec, attrs, inputs, target))


OTHER: list[tuple[Any, dict[str, int]]] = [
    (Gemv(), {"rows": 16, "groups": 8, "warps": 4, "ahead": 1, "stages": 1, "code": 0}),
    (Matrix(), {"warps": 2, "repeat": 2, "ahead": 1, "unroll": 2, "stages": 1, "code": 0}),
    (Matrix(), {"warps": 4, "repeat": 2, "ahead": 0, "unroll": 1, "stages": 3}),
    (Tiled(), {"bm": 16, "bn": 32, "bk": 128, "warps": 4, "stages": 2, "split": 2, "code": 0}),
]


@pytest.mark.parametrize(("kernel", "config"), OTHER, ids=[k.name for k, _ in OTHER])
def test_another_configuration(kernel: Any, config: dict[str, int]) -> None:
    for attrs, inputs in SPEC.cases(np.random.default_rng(3)):
        if inputs["x"].size > 700:  # the interpreter is slow
            continue
        if kernel.supports(make_problem(SPEC, attrs, inputs), HOPPER) is None:
            check(SPEC, kernel, attrs, inputs, HOPPER, config)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("factor", [6e4, 1e-6])
def test_the_reach_of_float16(dtype: str, factor: float) -> None:
    """Sums over a group neither overflow nor lose small activations."""
    rng = np.random.default_rng(1)
    attrs = {"group": 32, "zero": 7, "packing": "rows"}
    inputs = make_weight(rng, 8, 256, 32)
    inputs["scales"] = (inputs["scales"] / (4096 if factor > 1 else 1)).astype(np.float16)
    x = rng.uniform(-1, 1, (1, 256)) * factor
    inputs["x"] = make_x = to_numpy(to_torch(x.astype(np.float32)).to(dtype=_torch(dtype)))
    assert np.isfinite(make_x.astype(np.float32)).all()
    if factor > 1:
        check(
            SPEC,
            Gemv(),
            attrs,
            inputs,
            HOPPER,
            {"rows": 8, "groups": 8, "warps": 1, "ahead": 0, "stages": 1},
        )
        return
    problem = make_problem(SPEC, attrs, inputs)
    plan = Gemv().plan(
        problem, HOPPER, {"rows": 8, "groups": 8, "warps": 1, "ahead": 0, "stages": 1}
    )
    tensors = {n: to_torch(a) for n, a in inputs.items()}
    tensors["out"] = to_torch(np.zeros((1, 8), np.float32))  # float16 would round it to nothing
    interpret(problem, plan, tensors)
    expected = (SPEC.reference(attrs, inputs | {"x": inputs["x"].astype(np.float64)}))["out"]
    limit = 2e-2 if dtype == "float16" else 2e-3  # subnormal float16 inputs hold few bits
    assert relative_error(tensors["out"].numpy(), expected) < limit


def _torch(name: str) -> Any:
    import torch

    return getattr(torch, name)


@pytest.mark.parametrize("kernel", [Gemv(), Matrix(), Tiled()], ids=lambda k: k.name)
def test_strided_activations(kernel: Any) -> None:
    """Rows of x and of out inside wider tensors."""
    rng = np.random.default_rng(2)
    packing = "rows" if isinstance(kernel, Gemv) else "blocks"
    attrs = {"group": 32, "zero": 7, "packing": packing}
    weight = make_weight(rng, 20, 256, 32, "", packing)
    wide = rng.standard_normal((3, 320)).astype(np.float16)
    out = np.full((3, 24), np.nan, np.float16)
    specs = {n: TensorSpec(a.shape, a.dtype.name) for n, a in weight.items()}
    specs["x"] = TensorSpec((3, 256), "float16", (320, 1))
    specs["out"] = TensorSpec((3, 20), "float16", (24, 1))
    problem = Problem("gemm_w4", specs, attrs)
    config = dict(kernel.configs(problem, HOPPER)[0]) | {"code": 0}
    tensors = {n: to_torch(a) for n, a in weight.items()}
    tensors |= {"x": to_torch(wide)[:, 32:], "out": to_torch(out)}
    interpret(problem, kernel.plan(problem, HOPPER, config), tensors)
    got = to_numpy(tensors["out"])
    expected = SPEC.reference(attrs, {**weight, "x": wide[:, 32:288]})["out"]
    assert relative_error(got[:, :20], expected) < 2e-3
    assert np.isnan(got[:, 20:].astype(np.float32)).all()


def test_refusals_say_what_is_allowed() -> None:
    attrs = {"group": 32, "zero": 7, "packing": "rows"}
    inputs = {"x": TensorSpec((20, 256), "float16")}
    weight = {"w": TensorSpec((8, 32), "int32"), "scales": TensorSpec((8, 8), "float16")}

    def reason(kernel: Any, **changes: Any) -> str:
        specs = {**inputs, **weight, **changes.pop("specs", {})}
        return str(kernel.supports(Problem("gemm_w4", specs, {**attrs, **changes}), HOPPER))

    assert "at most 8 fit sm_90" in reason(Gemv())
    assert "at most 16" in reason(Matrix(), packing="blocks")
    assert "'blocks'" in reason(Matrix())
    assert "'rows'" in reason(Gemv(), packing="blocks")
    assert "must be 'rows'" in reason(Tiled(), packing="columns")
    assert "K = 128" in reason(Tiled(), specs={"x": TensorSpec((20, 128), "float16")})
    assert "divide K" in reason(Tiled(), group=96)
    mins = {"mins": weight["scales"]}
    assert "zero = 0" in reason(Tiled(), specs=mins)
    zeros = {"zeros": TensorSpec((8, 8), "uint8")}
    assert "without zeros" in reason(Tiled(), zero=0, specs={**mins, **zeros})
    assert reason(Tiled(), zero=0, specs=mins) == "None"
    assert "out_dtype 'int8'" in reason(Tiled(), out_dtype="int8")
    assert "not float16(8, 8)" in reason(Tiled(), specs={"scales": TensorSpec((8, 2), "float16")})
    unaligned = TensorSpec((1, 256), "float16", aligned=False)
    assert "16 bytes" in reason(Gemv(), specs={"x": unaligned})
