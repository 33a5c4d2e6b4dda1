"""Formats: GGUF's families bit for bit against gguf-py, and those that are made here."""

from __future__ import annotations

import gguf as oracle
import numpy as np
import pytest

from pumice.errors import ModelFileError, UnsupportedError, UsageError
from pumice.quantization import FORMATS, AffineWeight, QuantFormat, by_gguf_type, get_format
from pumice.quantization.gguf_families import GGUF_BLOCKS
from pumice.quantization.mlc import pack_words, unpack_words
from pumice.quantization.pack import dequantize

# Where the float16 numbers of a block are: random bytes there would be NaN or infinity.
HALVES = {
    "q4_0": (0,), "q4_1": (0, 2), "q5_0": (0,), "q5_1": (0, 2), "q8_0": (0,), "q2_k": (80, 82),
    "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
}  # fmt: skip
MADE = [fmt for fmt in FORMATS if fmt.quantize is not None]


def random_blocks(name: str, n: int, blocks: int, seed: int) -> np.ndarray:
    """uint8[n, bytes of a row] whose every code and scale is possible."""
    rng = np.random.default_rng(seed)
    nbytes = GGUF_BLOCKS[name][1]
    raw = rng.integers(0, 256, (n, blocks, nbytes), dtype=np.uint8)
    for at in HALVES[name]:
        half = rng.standard_normal((n, blocks, 1)).astype(np.float16)
        raw[..., at : at + 2] = half.view(np.uint8)
    return raw.reshape(n, blocks * nbytes)


@pytest.mark.parametrize("name", GGUF_BLOCKS)
@pytest.mark.parametrize(("n", "blocks"), [(1, 1), (7, 3), (0, 2), (33, 5)])
def test_gguf_family_is_exact(name: str, n: int, blocks: int) -> None:
    number, _, weights, unpack = GGUF_BLOCKS[name]
    fmt = get_format(name)
    raw = random_blocks(name, n, blocks, seed=n)
    weight = unpack(raw)
    k = blocks * weights
    assert (weight.codes.shape, weight.codes.dtype) == ((n, k), np.uint8)
    assert weight.scales.shape == (n, k // fmt.group)
    assert weight.scales.dtype == np.dtype(fmt.scale_dtype)
    assert (weight.mins is not None) == fmt.has_min
    if n == 0:
        return
    assert weight.codes.max() <= fmt.code_max
    expected = oracle.quants.dequantize(raw, oracle.GGMLQuantizationType(number))
    got = dequantize(weight, fmt)
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


def test_default_models_tensors_are_exact(smollm2_gguf) -> None:  # type: ignore[no-untyped-def]
    from pumice.weights.source import open_source

    with open_source(smollm2_gguf) as source:
        for name in ("blk.3.attn_q.weight", "blk.29.ffn_down.weight", "output_norm.weight"):
            fmt, value = source.affine_or_dense(name)
            raw = source.file.raw(name)
            kind = oracle.GGMLQuantizationType(fmt.gguf_type)
            expected = oracle.quants.dequantize(raw, kind).reshape(source.shape(name))
            got = dequantize(value, fmt) if isinstance(value, AffineWeight) else value
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("fmt", MADE, ids=lambda f: f.name)
@pytest.mark.parametrize("scale", [1.0, 1e-6, 3e3])
def test_made_formats_round_to_the_nearest_code(fmt: QuantFormat, scale: float) -> None:
    assert fmt.quantize is not None
    w = (np.random.default_rng(5).standard_normal((13, 224)) * scale).astype(np.float32)
    weight = fmt.quantize(w)
    assert weight.codes.max() <= fmt.code_max
    error = np.abs(dequantize(weight, fmt).astype(np.float64) - w).reshape(13, -1, 32)
    step = weight.scales.astype(np.float64)
    # Half a step, plus what the scale and min lose in float16 (a unit in its last place: 2^-11, or
    # 2^-24 below its normal numbers) over a code's whole range.
    lost = np.maximum(step * 2.0**-10, 2.0**-24) * (1 << fmt.bits)
    if weight.mins is not None:
        lost = lost + np.abs(weight.mins.astype(np.float64)) * 2.0**-10 + 2.0**-24
    assert (error.max(axis=-1) <= step / 2 + lost).all()


@pytest.mark.parametrize("fmt", MADE, ids=lambda f: f.name)
@pytest.mark.parametrize("value", [0.0, -3.5, 2.0**-20])
def test_constant_groups(fmt: QuantFormat, value: float) -> None:
    assert fmt.quantize is not None
    w = np.full((2, 64), value, np.float32)
    # A float16 scale is off by up to 2^-25 where it is tiny, times the code.
    atol = 2.0**-25 * (1 << fmt.bits)
    np.testing.assert_allclose(dequantize(fmt.quantize(w), fmt), w, rtol=2e-3, atol=atol)


@pytest.mark.parametrize("fmt", MADE, ids=lambda f: f.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
def test_values_that_no_scale_reaches(fmt: QuantFormat, bad: float) -> None:
    assert fmt.quantize is not None
    w = np.zeros((3, 64), np.float32)
    w[2, 40] = bad
    with pytest.raises(ModelFileError, match="NaN, infinity"):
        fmt.quantize(w)


@pytest.mark.parametrize("fmt", MADE, ids=lambda f: f.name)
def test_no_rows(fmt: QuantFormat) -> None:
    assert fmt.quantize is not None
    weight = fmt.quantize(np.zeros((0, 96), np.float32))
    assert (weight.codes.shape, weight.scales.shape) == ((0, 96), (0, 3))


def test_q4f16_1_is_mlcs() -> None:
    """A group by hand: max 7 → scale 1, code = round(w) + 7, eight codes a word, low first."""
    w = np.zeros((1, 32), np.float32)
    w[0, :9] = [7, -7, 0, 1, 2.4, -3, 5, -1.2, 6]
    weight = get_format("q4f16_1").quantize(w)  # type: ignore[misc]
    assert weight.scales.tolist() == [[1.0]]
    assert weight.codes[0, :10].tolist() == [14, 0, 7, 8, 9, 4, 12, 6, 13, 7]
    words = pack_words(weight.codes, 4)
    assert words.dtype == np.uint32
    assert words.shape == (1, 4)
    assert [hex(v) for v in words[0]] == ["0x6c49870e", "0x7777777d", "0x77777777", "0x77777777"]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_words_round_trip(bits: int, n: int) -> None:
    codes = np.random.default_rng(n).integers(0, 1 << bits, (n, 96), dtype=np.uint8)
    words = pack_words(codes, bits)
    assert (words.shape, words.dtype) == ((n, 96 * bits // 32), np.uint32)
    np.testing.assert_array_equal(unpack_words(words, bits), codes)


def test_table() -> None:
    assert len({f.name for f in FORMATS}) == len(FORMATS)
    numbers = [f.gguf_type for f in FORMATS if f.gguf_type is not None]
    assert len(set(numbers)) == len(numbers) == 13
    for fmt in FORMATS:
        assert get_format(fmt.name.upper()) is fmt
        if fmt.gguf_type is not None:
            assert by_gguf_type(fmt.gguf_type) is fmt
            assert oracle.GGMLQuantizationType(fmt.gguf_type).name.lower() == fmt.name
    with pytest.raises(UsageError, match=r"'q9' is unknown; known: f32, f16.*q6_k"):
        get_format("q9")
    with pytest.raises(UnsupportedError, match=r"16 \(IQ2_XXS\)"):
        by_gguf_type(16)
