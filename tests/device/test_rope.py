"""rope_table and rope_append on this machine, against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Output, Runner, host_target, relative_error

from pumice.operators.base import OperatorCall
from pumice.operators.registry import get_spec, kernels_of


def _cases(name: str) -> list[Any]:
    return get_spec(name).cases(np.random.default_rng(11))


def _runner(name: str, attrs: dict[str, Any], entry: str) -> Runner:
    call = OperatorCall(name, attrs, entry=entry)
    (kernel,) = kernels_of(name)
    assert kernel.supports(call, host_target()) is None
    return Runner(kernel.source(call, host_target(), kernel.configs(call, host_target())[0]))


@pytest.mark.parametrize("entry", ["decode", "extend"])
@pytest.mark.parametrize(("attrs", "inputs"), _cases("rope_table"))
def test_table(attrs: dict[str, Any], inputs: dict[str, np.ndarray], entry: str) -> None:
    expected = get_spec("rope_table").reference(attrs, inputs)["table"]
    out = Output(expected.shape, "float32")
    _runner("rope_table", attrs, entry)(inputs, {"table": out}, {"T": len(expected)})
    error = np.abs(out.array.astype(np.float64) - expected).max(initial=0)
    assert error <= 2e-6 * attrs["mscale"]


def test_table_over_every_long_angle() -> None:
    """All positions of a 128k context at frequency 1, where range reduction is hardest."""
    positions = np.arange(131073, dtype=np.int32)
    inv_freq = np.array([1.0, 0.7310586], np.float32)
    attrs = {"D": 4, "mscale": 1.0}
    inputs = {"positions": positions, "inv_freq": inv_freq}
    expected = get_spec("rope_table").reference(attrs, inputs)["table"]
    out = Output(expected.shape, "float32")
    _runner("rope_table", attrs, "extend")(inputs, {"table": out}, {"T": len(positions)})
    assert np.abs(out.array - expected).max() <= 5e-7


@pytest.mark.parametrize("entry", ["decode", "extend"])
@pytest.mark.parametrize(("attrs", "inputs"), _cases("rope_append"))
def test_append(attrs: dict[str, Any], inputs: dict[str, np.ndarray], entry: str) -> None:
    spec = get_spec("rope_append")
    expected = spec.reference(attrs, inputs)
    outputs = {
        "q_out": Output(expected["q_out"].shape, "float32"),
        "k_cache": Output(expected["k_cache"].shape, "float16", inputs["k_cache"]),
        "v_cache": Output(expected["v_cache"].shape, "float16", inputs["v_cache"]),
    }
    _runner("rope_append", attrs, entry)(inputs, outputs, {"T": len(inputs["slots"])})
    assert relative_error(outputs["q_out"].array, expected["q_out"]) <= spec.tolerance["float32"]
    for name in ("k_cache", "v_cache"):
        # float16 may round the other way where float32 and float64 differ; nothing else may change.
        np.testing.assert_allclose(outputs[name].array, expected[name], rtol=2e-3, atol=1e-6)
    np.testing.assert_array_equal(outputs["v_cache"].array, expected["v_cache"])
