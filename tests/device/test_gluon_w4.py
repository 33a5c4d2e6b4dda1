"""gemm_w4's and fused_w4's kernel for Hopper, as NumPy, against float64: where codes come to, how
programs share the steps along K, copies that are waited for, what is done at a tile's end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gluon_numpy import run
from triton_harness import make_problem, poisoned, relative_error

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.fused_w4.hopper import FusedStream
from pumice.operators.fused_w4.spec import SPEC as FUSED
from pumice.operators.gemm_w4.hopper import Stream
from pumice.operators.gemm_w4.spec import SPEC, make_weight, weight_specs
from pumice.operators.triton.plan import Problem, TensorSpec
from pumice.targets import GPU_TARGETS, get_target

HOPPER = get_target("sm_90")


def _inputs(
    m: int, n: int, k: int, group: int, offset: str, dtype: str, *parts: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    rng = np.random.default_rng(m * n + k)
    x = rng.standard_normal((m, k))
    x[0, :: k // 7] *= 300
    inputs = {"x": x.astype(numpy_dtype(dtype)), **make_weight(rng, n, k, group, offset)}
    attrs: dict[str, Any] = {"group": group, "zero": 0 if offset else 7, "packing": "rows"}
    if "bias" in parts:
        inputs["bias"] = rng.standard_normal(n).astype(numpy_dtype(dtype))
    if "residual" in parts:
        inputs["residual"] = rng.standard_normal((m, n)).astype(np.float32)
    if "float32" in parts:
        attrs["out_dtype"] = "float32"
    if "silu" in parts:
        attrs["activation"] = "silu"
        for name in ("scales", "mins"):
            if name in inputs:
                inputs[name] = (inputs[name] / 16).astype(np.float16)  # gates around 0
    return attrs, inputs


def _check(
    spec: OperatorSpec, kernel: Any, attrs: Any, inputs: Any, units: int, config: Any = None
) -> dict[str, np.ndarray]:
    problem = make_problem(spec, attrs, inputs)
    target = replace(HOPPER, compute_units=units)
    assert kernel.supports(problem, target) is None, kernel.supports(problem, target)
    config = {**kernel.configs(problem, target)[0], **(config or {})}
    plan = kernel.plan(problem, target, config)
    arrays = {
        name: inputs[name].copy() if name in inputs else poisoned(tensor)
        for name, tensor in problem.tensors.items()
    }
    for name, tensor in plan.workspaces.items():
        arrays[name] = poisoned(tensor)
    for name in plan.zeroed:
        arrays[name] = np.zeros_like(arrays[name])
    for launch in plan.launches:
        run(launch, arrays)
    for name in plan.restored:
        assert not arrays[name].any()
    found = {}
    for name, expected in spec.reference(attrs, inputs).items():
        assert arrays[name].dtype == expected.dtype
        error = relative_error(arrays[name], expected)
        assert error <= spec.tolerance[expected.dtype.name], (name, error)
        found[name] = arrays[name]
    return found


@pytest.mark.parametrize(
    ("units", "case"),
    [
        (1, (2, 70, 256, 32, "", "float16")),
        (3, (5, 200, 512, 32, "", "float16", "bias")),
        (7, (16, 131, 768, 32, "mins", "float16", "float32")),
        (5, (17, 65, 384, 32, "", "bfloat16")),
        (4, (33, 150, 512, 128, "mins", "bfloat16", "bias")),
        (2, (50, 40, 256, 64, "", "float16")),
        (9, (8, 90, 640, 32, "", "bfloat16", "float32")),
    ],
    ids=str,
)
def test_products(units: int, case: Any) -> None:
    attrs, inputs = _inputs(*case)
    _check(SPEC, Stream(), attrs, inputs, units)


@pytest.mark.parametrize(
    ("units", "case"),
    [
        (3, (9, 150, 512, 32, "", "float16", "silu")),
        (5, (2, 258, 256, 32, "mins", "bfloat16", "silu", "bias")),
        (4, (20, 131, 384, 32, "", "float16", "residual")),
        (6, (3, 70, 768, 64, "mins", "float16", "residual", "bias")),
    ],
    ids=str,
)
def test_what_stands_beside(units: int, case: Any) -> None:
    attrs, inputs = _inputs(*case)
    _check(FUSED, FusedStream(), attrs, inputs, units)


def test_every_configuration() -> None:
    """The same sums, whatever the tile; the programs' shares change their order only."""
    attrs, inputs = _inputs(6, 300, 512, 32, "", "float16")
    problem = make_problem(SPEC, attrs, inputs)
    for config in Stream().configs(problem, HOPPER):
        _check(SPEC, Stream(), attrs, inputs, 2, config)


def _reason(m: int = 8, k: int = 256, group: int = 32, offset: str = "", **changes: Any) -> str:
    inputs = {"x": TensorSpec((m, k), "float16"), **weight_specs(64, k, group, offset)}
    inputs |= {"out": TensorSpec((m, 64), "float16")}
    attrs = {"group": group, "zero": 0, "packing": "rows", **changes}
    return str(Stream().supports(Problem("gemm_w4", inputs, attrs), HOPPER))


def test_reasons() -> None:
    assert _reason() == "None"
    assert "65 tokens" in _reason(65) and "1 tokens" in _reason(1)
    assert "K = 160" in _reason(k=160) and "groups of 128" in _reason(k=384, group=128)
    assert "zero points" in _reason(offset="zeros")
    assert "'rows'" in _reason(packing="blocks")


@pytest.mark.parametrize("target", GPU_TARGETS, ids=lambda t: t.name)
def test_only_on_hopper(target: Any) -> None:
    attrs, inputs = _inputs(8, 64, 256, 32, "", "float16")
    reason = Stream().supports(make_problem(SPEC, attrs, inputs), target)
    assert (reason is None) == (target.name == "sm_90")
    assert reason is None or target.name in reason
