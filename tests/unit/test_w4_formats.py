"""AWQ's and GPTQ's tensors → the layout that kernels read; made here as those tools pack them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pumice.errors import ModelFileError, UsageError
from pumice.operators.gemm_w4.layout import dequantize, from_awq, from_gptq, pack, unpack

K, N, GROUP = 192, 24, 64
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def words(codes: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """uint8[A, 8·B] → int32[A, B], nibble i is column order[i] of eight."""
    found = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for nibble, column in enumerate(order):
        found |= codes[:, column::8].astype(np.uint32) << np.uint32(4 * nibble)
    return found.view(np.int32)


def weight() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """codes [K, N], zeros [K/G, N] with the extremes, scales [K/G, N]; float64 weight [N, K]."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 16, (K, N), np.uint8)
    zeros = rng.integers(1, 16, (K // GROUP, N), np.uint8)
    zeros[0, :2] = 1, 15
    scales = (rng.random((K // GROUP, N)) + 0.5).astype(np.float16)
    steps = codes.astype(np.float64) - np.repeat(zeros, GROUP, 0)
    return codes, zeros, scales, (steps * np.repeat(scales.astype(np.float64), GROUP, 0)).T


@pytest.mark.parametrize("packing", ["rows", "blocks"])
@pytest.mark.parametrize("form", ["awq", "gptq", "gptq 2"])
def test_the_same_weights(form: str, packing: str) -> None:
    codes, zeros, scales, expected = weight()
    if packing == "blocks":
        codes, expected = np.tile(codes, (2, 1)), np.tile(expected, (1, 2))
        zeros, scales = np.tile(zeros, (2, 1)), np.tile(scales, (2, 1))
    if form == "awq":
        made = from_awq(words(codes, AWQ_ORDER), words(zeros, AWQ_ORDER), scales, packing)
    else:
        along_k = np.ascontiguousarray(words(np.ascontiguousarray(codes.T)).T)
        offset = 1 if form == "gptq" else 0
        stored = words(zeros - np.uint8(offset))
        made = from_gptq(along_k, stored, scales, packing, zero_offset=offset)
    assert np.array_equal(dequantize(*made, packing), expected)


def given(**changed: Any) -> dict[str, np.ndarray]:
    codes, zeros, scales, _ = weight()
    return {"qweight": words(codes), "qzeros": words(zeros), "scales": scales} | changed


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"qweight": np.zeros((K, 3), np.int64)}, "qweight is int64[192, 3]; allowed: int32"),
        ({"scales": np.ones((3, N), np.float32)}, "scales is float32[3, 24]; allowed: float16"),
        ({"qzeros": np.zeros((3, 5), np.int32)}, "qzeros is [3, 5] beside qweight [192, 3]; allo"),
        ({"scales": np.ones((3, 25), np.float16)}, "scales is [3, 25] beside"),
        ({"scales": np.ones((4, N), np.float16)}, "192 codes a row have 4 scales; allowed: groups"),
        ({"scales": np.ones((5, N), np.float16)}, "192 codes a row have 5 scales"),
        ({"scales": np.ones(N, np.float16)}, "scales is float16[24]; allowed: float16, two axes"),
    ],
)
def test_tensors_of_different_weights(changed: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(ModelFileError) as error:
        from_awq(**given(**changed))
    assert str(error.value).startswith("AWQ: ") and text in str(error.value)
    with pytest.raises(ModelFileError, match=r"^GPTQ: "):
        from_gptq(**given(**changed))


def test_codes_that_are_none() -> None:
    for codes in (np.full((2, 32), 16), np.full((2, 32), -1)):
        with pytest.raises(ModelFileError, match=r"hold code (16|-1); 0 to 15 are allowed"):
            pack(codes)
    for wrong in (np.zeros((2, 32)), np.zeros(32, np.uint8)):
        with pytest.raises(UsageError, match=r"codes are .*; allowed: integers \[N, K\]"):
            pack(wrong)
    for call in (lambda: pack(np.zeros((2, 32), np.uint8), "x"),
                 lambda: unpack(np.zeros((2, 4), np.int32), "x")):  # fmt: skip
        with pytest.raises(UsageError, match="packing is 'x'; allowed: 'rows', 'blocks'"):
            call()
