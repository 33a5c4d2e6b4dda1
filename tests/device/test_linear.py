"""linear on this machine: every format, odd sizes, one symbol for all sizes, against NumPy in
float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import Output, host_target
from linear_harness import LinearRunner, linear_call, random_weight

from pumice.operators.linear.kernel_tir_float import LinearFloat
from pumice.operators.linear.kernel_tir_int8 import LinearInt8
from pumice.operators.quantized import quantize_rows
from pumice.operators.registry import get_spec
from pumice.quantization import QuantFormat, get_format

# One row block or less, partial blocks, many groups; outputs × inputs.
SHAPES = ((1, 32), (7, 96), (123, 64), (24, 576), (33, 160))
# None, each small-batch path and its tails, the panel with a full and a partial last tile.
TOKENS = (0, 1, 2, 3, 5, 8, 16, 17, 67)
INT8 = (
    "q4_0", "q4_1", "q4f16_1", "q4f16_1_min", "q5_0", "q5_1", "q8_0", "q8f16",
    "q2_k", "q3_k", "q4_k", "q5_k", "q6_k",
)  # fmt: skip


def check(runner: LinearRunner, tolerance: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for n, k in SHAPES:
        for tokens in TOKENS:
            error = runner.error(rng, n, k, tokens)
            assert error <= tolerance, f"N={n} K={k} T={tokens}: error {error}"


def attrs(fmt: QuantFormat) -> dict[str, Any]:
    """Every combination of bias and residual comes up among the formats."""
    return {"N": 0, "K": 32, "bias": fmt.bits in (4, 5, 16), "residual": fmt.bits in (4, 6, 8)}


@pytest.mark.parametrize("name", INT8)
def test_int8(name: str) -> None:
    call = linear_call(get_format(name), attrs(get_format(name)), "int8", host_target())
    check(LinearRunner(LinearInt8(), call), get_spec("linear").tolerance["int8"], 1)


@pytest.mark.parametrize("name", ["q4_1", "q8_0"])
def test_two_planes(name: str) -> None:
    call = linear_call(get_format(name), attrs(get_format(name)), "int16", host_target())
    check(LinearRunner(LinearInt8(), call), get_spec("linear").tolerance["int8"], 2)


@pytest.mark.parametrize("name", ["q4_1", "q6_k"])
def test_plain_arithmetic_is_the_same_template(name: str) -> None:
    """The template without any target's dot instruction: what the VNNI and Arm kernels are, save
    for the instruction.
    """
    kernel = LinearInt8()
    kernel.generic = True
    call = linear_call(get_format(name), attrs(get_format(name)), "int8", host_target())
    check(LinearRunner(kernel, call), get_spec("linear").tolerance["int8"], 3)


def test_every_register_tile() -> None:
    """Of the panel, which hosts with wide tiles have in plain arithmetic only."""
    kernel = LinearInt8()
    kernel.generic = True
    call = linear_call(get_format("q4_1"), attrs(get_format("q4_1")), "int8", host_target())
    for tokens, blocks in ((2, 2), (4, 2)):
        config = {"tokens": tokens, "blocks": blocks}
        check(LinearRunner(kernel, call, config), get_spec("linear").tolerance["int8"], 4)


def test_largest_codes_do_not_saturate() -> None:
    """All codes and activations at their limits: the int16 partial sums are as large as they
    get."""
    for name in ("q4_1", "q5_1", "q8_0", "q6_k"):
        fmt = get_format(name)
        runner = LinearRunner(LinearInt8(), linear_call(fmt, attrs(fmt), "int8", host_target()))

        class Extreme:
            """A generator whose every draw is the limit."""

            def integers(self, low: int, high: int, shape: tuple[int, int]) -> np.ndarray:
                return np.full(shape, high - 1)

            def standard_normal(self, shape: tuple[int, int]) -> np.ndarray:
                return np.ones(shape)

        for tokens in (1, 2, 4, 20, 70):
            error = runner.error(Extreme(), 9, 64, tokens)  # type: ignore[arg-type]
            assert error <= get_spec("linear").tolerance["int8"]


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "q4_1", "q8_0", "q6_k"])
def test_float(name: str) -> None:
    call = linear_call(get_format(name), attrs(get_format(name)), "float32", host_target())
    check(LinearRunner(LinearFloat(), call), get_spec("linear").tolerance["float32"], 5)


def test_several_chunks_of_tokens() -> None:
    call = linear_call(get_format("q4_1"), attrs(get_format("q4_1")), "int16", host_target())
    runner = LinearRunner(LinearInt8(), call)
    error = runner.error(np.random.default_rng(6), 20, 2048, 300)
    assert error <= get_spec("linear").tolerance["int8"]


def test_reasons() -> None:
    kernel = LinearInt8()
    sizes = {**attrs(get_format("q4_1")), "K": 40}
    assert "40" in str(
        kernel.supports(
            linear_call(get_format("q4_1"), sizes, "int8", host_target()), host_target()
        )
    )
    dense = linear_call(get_format("f16"), attrs(get_format("f16")), "int8", host_target())
    assert "f16" in str(kernel.supports(dense, host_target()))
    exact = linear_call(get_format("q4_1"), attrs(get_format("q4_1")), "float32", host_target())
    assert "float32" in str(kernel.supports(exact, host_target()))


@pytest.mark.parametrize("added", [(), ("bias",), ("residual",), ("bias", "residual")], ids=str)
def test_a_row_does_not_depend_on_the_rows_beside_it(added: tuple[str, ...]) -> None:
    """Bit for bit, by every path that few and many tokens take."""
    rng = np.random.default_rng(8)
    fmt = get_format("q4_1")
    terms = {name: name in added for name in ("bias", "residual")}
    call = linear_call(fmt, {**attrs(fmt), **terms}, "int16", host_target())
    runner = LinearRunner(LinearInt8(), call)
    n, k, most = 33, 160, 130
    packed, _ = random_weight(rng, fmt, n, k, host_target())
    quantized = quantize_rows(rng.standard_normal((most, k)).astype(np.float32), planes=2)
    bias, residual = (rng.standard_normal(n).astype(np.float32) for _ in range(2))
    first = []
    for tokens in (1, 2, 5, 16, 30, 70, 130):
        rows = -(-tokens // 8) * 8
        out = Output((rows, n), "float32")
        inputs = {name: array[:rows] for name, array in quantized.items()}
        inputs = {name: np.resize(array, (rows, array.shape[1])) for name, array in inputs.items()}
        more = {"bias": bias, "residual": np.tile(residual, (rows, 1))}
        inputs |= {name: more[name] for name in added}
        runner.run({**inputs, **packed}, {"out": out}, {"T": tokens, "N": n, "K": k})
        first.append(out.array[0])
    for row in first[1:]:
        np.testing.assert_array_equal(row, first[0])
