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
    """Scales that keep activations' size, vectors of ones, biases of zeros, random codes."""
    rows = {r.name: r for r in made(get_format("q4f16_1")).records()}
    assert rows["a.weight.w"].fill is None
    assert rows["a.weight.scales"].fill == pytest.approx(3.46 / (15 * K**0.5))
    (vector,) = made(get_format("f32"), (K,)).records()
    assert vector.fill == 1.0 and vector.dtype == "float32"
