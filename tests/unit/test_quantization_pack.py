"""The packed layout, element by element as its definition says, and back."""

from __future__ import annotations

import numpy as np
import pytest

from pumice.dtypes import numpy_dtype
from pumice.quantization import AffineWeight, PackedLayout, QuantFormat, get_format
from pumice.quantization import pack as pack_module
from pumice.quantization.pack import concatenate, pack_affine, pack_dense, unpack_affine

AFFINE = ["q4_0", "q4_1", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q6_k", "q8f16", "q4f16_1_min"]


def _random(fmt: QuantFormat, n: int, k: int, seed: int = 0) -> AffineWeight:
    rng = np.random.default_rng(seed)
    dtype = numpy_dtype(fmt.scale_dtype)
    shape = (n, k // fmt.group)
    return AffineWeight(
        rng.integers(0, fmt.code_max + 1, (n, k), dtype=np.uint8),
        rng.standard_normal(shape).astype(dtype),
        rng.standard_normal(shape).astype(dtype) if fmt.has_min else None,
    )


@pytest.mark.parametrize("name", AFFINE)
@pytest.mark.parametrize(("n", "k", "rows"), [(5, 64, 4), (16, 96, 16), (1, 32, 8), (17, 160, 16)])
def test_every_element(name: str, n: int, k: int, rows: int) -> None:
    fmt, layout = get_format(name), PackedLayout(rows)
    weight = _random(fmt, n, k)
    packed = pack_affine(weight, fmt, layout)
    assert set(packed) == {"codes", "scales"} | ({"mins"} if fmt.has_min else set())
    codes, group = packed["codes"], fmt.group
    assert codes.flags.c_contiguous
    for row in range(layout.padded(n)):
        block, lane = divmod(row, rows)
        for col in range(k):
            if fmt.code_bits == 8:
                found = codes[block, col // 4, lane, col % 4]
            else:
                inside = col % group
                high, place = divmod(inside, group // 2)
                byte = codes[block, col // group, place // 4, lane, place % 4]
                found = byte >> 4 if high else byte & 15
            assert found == (weight.codes[row, col] if row < n else 0)
        for g in range(k // group):
            assert packed["scales"][block, g, lane] == (weight.scales[row, g] if row < n else 0)
            if weight.mins is not None:
                assert packed["mins"][block, g, lane] == (weight.mins[row, g] if row < n else 0)


@pytest.mark.parametrize("name", AFFINE)
@pytest.mark.parametrize("n", [0, 1, 37, 64])
def test_round_trip_over_many_runs(name: str, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_module, "_RUN_BYTES", 1 << 12)
    fmt, layout = get_format(name), PackedLayout(8)
    weight = _random(fmt, n, 256, seed=n)
    back = unpack_affine(pack_affine(weight, fmt, layout), fmt, layout, n)
    np.testing.assert_array_equal(back.codes, weight.codes)
    np.testing.assert_array_equal(back.scales, weight.scales)
    assert (back.mins is None) == (weight.mins is None)
    if weight.mins is not None and back.mins is not None:
        np.testing.assert_array_equal(back.mins, weight.mins)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("n", "k", "rows"), [(5, 7, 4), (16, 3, 16), (0, 4, 8)])
def test_dense(name: str, n: int, k: int, rows: int) -> None:
    fmt, layout = get_format(name), PackedLayout(rows)
    value = np.random.default_rng(n).standard_normal((n, k)).astype(np.float32)
    data = pack_dense(value, fmt, layout)["data"]
    assert fmt.dense_dtype is not None
    assert (data.shape, data.dtype) == (
        (layout.padded(n) // rows, k, rows),
        numpy_dtype(fmt.dense_dtype),
    )
    flat = data.transpose(0, 2, 1).reshape(-1, k)
    np.testing.assert_array_equal(flat[:n], value.astype(data.dtype))
    assert not flat[n:].any()


@pytest.mark.parametrize("name", ["q4_0", "q4_1"])
def test_concatenate(name: str) -> None:
    fmt = get_format(name)
    parts = [_random(fmt, n, 64, seed=n) for n in (3, 1, 5)]
    whole = concatenate(parts)
    assert whole.codes.shape == (9, 64)
    np.testing.assert_array_equal(whole.codes[3:4], parts[1].codes)
    np.testing.assert_array_equal(whole.scales[4:], parts[2].scales)
    if fmt.has_min:
        assert whole.mins is not None and parts[0].mins is not None
        np.testing.assert_array_equal(whole.mins[:3], parts[0].mins)
    assert concatenate(parts[:1]) is parts[0]
