"""Weights as a GPU keeps them: every format comes back as it was."""

from __future__ import annotations

import numpy as np
import pytest

from pumice.compiler.gpu.weights import GpuWeight, make_weight
from pumice.dtypes import numpy_dtype
from pumice.errors import CompileError
from pumice.operators.gemm_w4.spec import dense_weight as dense_w4
from pumice.operators.gemm_w8.spec import dense_weight as dense_w8
from pumice.quantization import FORMATS, AffineWeight, QuantFormat, get_format
from pumice.quantization.pack import dequantize
from pumice.runtime.gpu_weights import _chunk
from pumice.targets import get_target

N, K = 10, 256


def made(fmt: QuantFormat, shape: tuple[int, ...] = (N, K), dtype: str = "float16") -> GpuWeight:
    return make_weight("a.weight", ("a.weight",), shape, fmt, get_target("gfx1100"), dtype)


def random_affine(fmt: QuantFormat, rng: np.random.Generator) -> AffineWeight:
    codes = rng.integers(0, fmt.code_max + 1, (N, K), dtype=np.uint8)
    groups = (N, K // fmt.group)
    scales = rng.uniform(0.01, 0.1, groups).astype(numpy_dtype(fmt.scale_dtype))
    mins = rng.uniform(-0.5, 0.5, groups).astype(scales.dtype) if fmt.has_min else None
    return AffineWeight(codes, scales, mins)


@pytest.mark.parametrize("fmt", [f for f in FORMATS if f.affine], ids=lambda f: f.name)
def test_codes_are_not_requantized(fmt: QuantFormat) -> None:
    """What the products' references make of the packed form is what the file means, exactly."""
    weight = random_affine(fmt, np.random.default_rng(1))
    use = made(fmt)
    packed = use.pack(lambda name: (fmt, weight))
    named = {name.removeprefix("a.weight."): array for name, array in packed.items()}
    for name, spec in use.specs().items():
        assert named[name].shape == spec.shape and named[name].dtype.name == spec.dtype
    dense = dense_w4 if use.form == "w4" else dense_w8
    np.testing.assert_allclose(dense(use.attrs, named), dequantize(weight, fmt), atol=1e-6)
    expected = {"q4f16_1": "w4", "q4_1": "w4", "q4_k": "w8", "q2_k": "w8", "q8_0": "w8"}
    assert use.form == expected.get(fmt.name, use.form)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_floats(dtype: str) -> None:
    value = np.random.default_rng(2).standard_normal((N, K)).astype(np.float32)
    fmt = get_format("f32")
    (packed,) = made(fmt, dtype=dtype).pack(lambda name: (fmt, value)).values()
    np.testing.assert_array_equal(packed, value.astype(numpy_dtype(dtype)))


def test_what_float16_cannot_hold() -> None:
    fmt = get_format("bf16")
    value = np.full((N, K), 1e5, np.float32).astype(numpy_dtype("bfloat16"))
    with pytest.raises(CompileError, match=r"'a\.weight' holds values that float16 cannot"):
        made(fmt).pack(lambda name: (fmt, value))
    made(fmt, dtype="bfloat16").pack(lambda name: (fmt, value))


def test_another_format_than_planned() -> None:
    weight = random_affine(get_format("q4_0"), np.random.default_rng(3))
    with pytest.raises(CompileError, match="came as q4_0 where q4_1 was planned"):
        made(get_format("q4_1")).pack(lambda name: (get_format("q4_0"), weight))


def test_records_of_made_up_weights() -> None:
    """Scales that keep activations' size, vectors of ones, random bits for codes."""
    rows = {r.name: r for r in made(get_format("q4f16_1")).records()}
    assert rows["a.weight.w"].fill is None
    assert rows["a.weight.scales"].fill == pytest.approx(3.46 / (15 * K**0.5))
    (vector,) = made(get_format("f32"), (K,)).records()
    assert vector.fill == 1.0 and vector.dtype == "float32" and not vector.signs


@pytest.mark.parametrize("fmt", ["q4f16_1", "q4_0", "q4_1"])
def test_made_up_weights_have_no_mean(fmt: str) -> None:
    """Else every token's activations are nearly the same."""
    rows, groups = 512, 64
    record = {r.name: r for r in made(get_format(fmt), (rows, 32 * groups)).records()}
    shape = (rows, groups)
    scales = _chunk(record["a.weight.scales"], 2 * rows * groups).view(np.float16).reshape(shape)
    codes = np.random.default_rng(1).integers(0, 16, (rows, groups, 32))
    if "a.weight.mins" in record:
        mins = _chunk(record["a.weight.mins"], 2 * rows * groups).view(np.float16).reshape(shape)
        weight = codes * scales[..., None] + mins[..., None]
    else:
        weight = (codes - get_format(fmt).zero) * scales[..., None].astype(np.float32)
    assert abs(weight.mean()) < 0.02 * weight.std()
    products = weight.reshape(rows, -1).astype(np.float64).sum(axis=1)  # of ones
    assert abs(products.mean()) < 0.2 * products.std()
