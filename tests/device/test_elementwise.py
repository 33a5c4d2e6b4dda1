"""rms_norm, quantize, silu_mul, gather_rows and add on this machine, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Output, Runner, check_quantized, host_target, relative_error

from pumice.operators.base import OperatorCall
from pumice.operators.registry import get_spec, kernels_of

OPERATORS = ("rms_norm", "quantize", "silu_mul", "gather_rows", "add")


def _cases() -> list[Any]:
    rng = np.random.default_rng(7)
    return [
        pytest.param(name, attrs, inputs, id=f"{name}-{i}")
        for name in OPERATORS
        for i, (attrs, inputs) in enumerate(get_spec(name).cases(rng))
    ]


@pytest.mark.parametrize("entry", ["decode", "extend"])
@pytest.mark.parametrize(("name", "attrs", "inputs"), _cases())
def test_matches_reference(
    name: str, attrs: dict[str, Any], inputs: dict[str, np.ndarray], entry: str
) -> None:
    spec = get_spec(name)
    call = OperatorCall(name, attrs, entry=entry)
    (kernel,) = kernels_of(name)
    assert kernel.supports(call, host_target()) is None
    (config,) = kernel.configs(call, host_target())
    expected = spec.reference(attrs, inputs)
    outputs = {key: Output(value.shape, str(value.dtype)) for key, value in expected.items()}
    first = next(iter(inputs.values()))
    sizes = {"T": len(first), "R": len(inputs.get("rows", ()))}
    Runner(kernel.source(call, host_target(), config))(inputs, outputs, sizes)
    actual = {key: output.array for key, output in outputs.items()}
    if "out" in actual:
        assert relative_error(actual["out"], expected["out"]) <= spec.tolerance["float32"]
    else:
        planes, sum_group = attrs.get("planes", 1), attrs.get("sum_group", 32)
        check_quantized(actual, expected, planes, sum_group, spec.tolerance["float32"])


def test_reasons_name_the_width() -> None:
    call = OperatorCall("rms_norm", {"H": 100, "eps": 1e-5, "quantize": True})
    (kernel,) = kernels_of("rms_norm")
    assert "100" in str(kernel.supports(call, host_target()))
