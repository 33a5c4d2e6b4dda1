"""attention on this machine, against NumPy in float64: both entries over the operator's cases, and
longer contexts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Output, Runner, check_quantized, host_target, relative_error

from pumice.operators.attention.spec import SPEC, batch
from pumice.operators.base import OperatorCall
from pumice.operators.quantized import dequantize_rows
from pumice.operators.registry import kernels_of

_SMOL: dict[str, Any] = {"heads": 9, "kv_heads": 3, "head_dim": 64, "block_size": 32}


def run(attrs: dict[str, Any], inputs: dict[str, np.ndarray], entry: str) -> dict[str, np.ndarray]:
    call = OperatorCall("attention", attrs, entry=entry)
    (kernel,) = kernels_of("attention")
    assert kernel.supports(call, host_target()) is None
    source = kernel.source(call, host_target(), kernel.configs(call, host_target())[0])
    tokens, width = inputs["q"].shape
    shapes = {"out": ((tokens, width), "float32")}
    if attrs.get("quantize"):
        shapes = {
            "x_codes": ((tokens, width * attrs.get("planes", 1)), "int8"),
            "x_scales": ((tokens, width // 32), "float32"),
            "x_sums": ((tokens, width // attrs.get("sum_group", 32)), "float32"),
        }
    outputs = {name: Output(shape, dtype) for name, (shape, dtype) in shapes.items()}
    sequences, blocks = inputs["block_table"].shape
    Runner(source)(inputs, outputs, {"T": tokens, "S": sequences, "M": blocks})
    return {name: output.array for name, output in outputs.items()}


def check(attrs: dict[str, Any], inputs: dict[str, np.ndarray], entry: str) -> None:
    actual = run(attrs, inputs, entry)
    exact = SPEC.reference({**attrs, "quantize": False}, inputs)["out"]
    if not attrs.get("quantize"):
        assert relative_error(actual["out"], exact) <= SPEC.tolerance["float32"]
        return
    assert relative_error(dequantize_rows(actual), exact) <= SPEC.tolerance["int8"]
    expected = SPEC.reference(attrs, inputs)
    planes, sum_group = attrs.get("planes", 1), attrs.get("sum_group", 32)
    check_quantized(actual, expected, planes, sum_group, 1e-5, moved=0.5 if planes == 2 else 0.01)


@pytest.mark.parametrize(("attrs", "inputs"), SPEC.cases(np.random.default_rng(3)))
def test_extend(attrs: dict[str, Any], inputs: dict[str, np.ndarray]) -> None:
    check(attrs, inputs, "extend")


@pytest.mark.parametrize("index", range(len(SPEC.cases(np.random.default_rng(3)))))
def test_decode(index: int) -> None:
    """The same head shapes with one query a sequence."""
    rng = np.random.default_rng(5)
    attrs = SPEC.cases(rng)[index][0]
    check(attrs, batch(rng, attrs, [1, 1, 1, 1], [1, 300, 32, 95]), "decode")


@pytest.mark.parametrize("context", [0, 33, 2500, 20000])
def test_decode_long(context: int) -> None:
    rng = np.random.default_rng(context)
    contexts = [context, 64] if context else []
    check(_SMOL, batch(rng, _SMOL, [1] * len(contexts), contexts), "decode")


def test_extend_long() -> None:
    rng = np.random.default_rng(9)
    check(_SMOL, batch(rng, _SMOL, [50, 1], [1500, 700]), "extend")


def test_decode_does_not_depend_on_the_batch() -> None:
    """A sequence's result is the same bit for bit, whoever is beside it."""
    rng = np.random.default_rng(1)
    inputs = batch(rng, _SMOL, [1, 1, 1], [70, 901, 33])
    together = run(_SMOL, inputs, "decode")["out"][1]
    alone = {
        **inputs,
        "q": inputs["q"][1:2],
        "query_start": np.array([0, 1], np.int32),
        "context_len": inputs["context_len"][1:2],
        "block_table": inputs["block_table"][1:2],
    }
    np.testing.assert_array_equal(run(_SMOL, alone, "decode")["out"][0], together)


def test_large_scores_do_not_overflow() -> None:
    rng = np.random.default_rng(2)
    inputs = batch(rng, _SMOL, [40], [100])
    inputs["q"] *= np.float32(300)
    check({**_SMOL, "scale": 1.0}, inputs, "extend")
    inputs = batch(rng, _SMOL, [1], [100])
    inputs["q"] *= np.float32(300)
    check({**_SMOL, "scale": 1.0}, inputs, "decode")


def test_two_planes_are_quantized_by_the_row() -> None:
    call = OperatorCall("attention", {**_SMOL, "quantize": True, "planes": 2})
    (kernel,) = kernels_of("attention")
    assert "row's scale" in str(kernel.supports(call, host_target()))
