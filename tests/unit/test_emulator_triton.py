"""Triton's kernels for AMD GPUs, executed, against NumPy in float64."""

from __future__ import annotations

import emulator_kernels as kernels
import ml_dtypes
import numpy as np
import pytest
import triton.language as tl
from emulator_kernels import ARCHS, MAIN_ARCHS, launch

from pumice.binary.amdgpu import read_code_object
from pumice.emulator.report import LaunchReport


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def nans(*shape: int) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def clean(report: LaunchReport) -> None:
    assert [str(fault) for fault in report.faults] == []


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("n", [1, 127, 1000])
def test_vector_add(arch: str, n: int) -> None:
    x, y, out = normal(1, n), normal(2, n), nans(n)
    clean(launch(kernels.vector_add, arch, (-(-n // 256),), [x, y, out, n], {"BLOCK": 256}))
    np.testing.assert_array_equal(out, x + y)


@pytest.mark.parametrize("arch", ARCHS)
def test_softmax(arch: str) -> None:
    x, out = normal(3, 7, 201) * 4, nans(7, 201)
    clean(launch(kernels.softmax, arch, (7,), [x, out, 201, 201], {"BLOCK": 256}))
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("arch", ARCHS)
def test_elementwise_functions(arch: str) -> None:
    n = 777
    x, y, out = normal(4, n) * 3, normal(5, n), nans(n)
    clean(launch(kernels.elementwise, arch, (4,), [x, y, out, n], {"BLOCK": 256}))
    a, b = x.astype(np.float64), y.astype(np.float64)
    r = b / (1 + np.exp(-a)) + np.sqrt(abs(a)) / (b * b + 1) + np.exp2(-abs(b))
    r += np.sin(a) + np.log(abs(b) + 1) + np.floor(a) + 1 / np.sqrt(b * b + 0.5)
    o = np.arange(n, dtype=np.int64)
    i = o * 2654435761 % 1000003
    r += i // 7 % 13 + np.clip(a, -0.5, 0.5) + a * b + 1
    np.testing.assert_allclose(out, np.where(a > b, r, -r), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8"])
def test_matmul(arch: str, kind: str) -> None:
    m, n, k = 61, 45, 83
    if kind == "int8":
        rng = np.random.default_rng(6)
        a = rng.integers(-128, 128, (m, k), np.int8)
        b = rng.integers(-128, 128, (k, n), np.int8)
        c = np.full((m, n), -1, np.int32)
        acc = tl.int32
    else:
        a, b = (normal(s, *shape).astype(kind) for s, shape in ((7, (m, k)), (8, (k, n))))
        c, acc = nans(m, n), tl.float32
    sizes = {"BM": 32, "BN": 32, "BK": 32, "ACC": acc}
    clean(launch(kernels.matmul, arch, (2, 2), [a, b, c, m, n, k], sizes))
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("arch", "kind"),
    [
        ("gfx942", "float8_e4m3fnuz"),
        ("gfx950", "float8_e4m3fn"),
        ("gfx1201", "float8_e4m3fn"),
        ("gfx1201", "float8_e5m2"),
        ("gfx1100", "float8_e5m2"),
    ],
)
def test_matmul_fp8(arch: str, kind: str) -> None:
    m, n, k = 33, 40, 70
    dtype = np.dtype(getattr(ml_dtypes, kind))
    a, b, c = normal(9, m, k).astype(dtype), normal(10, k, n).astype(dtype), nans(m, n)
    sizes = {"BM": 32, "BN": 32, "BK": 32, "ACC": tl.float32}
    clean(launch(kernels.matmul, arch, (2, 2), [a, b, c, m, n, k], sizes))
    want = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(c, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("arch", ARCHS)
def test_reduction(arch: str) -> None:
    rows, n = 5, 611
    x = normal(11, rows, n)
    sums, highest, where = nans(rows), nans(rows), np.full(rows, -1, np.int32)
    clean(launch(kernels.row_sums, arch, (rows,), [x, sums, highest, where, n, n], {"BLOCK": 256}))
    np.testing.assert_allclose(sums, x.astype(np.float64).sum(1), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(highest, x.max(1))
    np.testing.assert_array_equal(where, x[:, :256].argmax(1))


@pytest.mark.parametrize("arch", MAIN_ARCHS)
def test_scan(arch: str) -> None:
    rows, n = 3, 251
    x, sums, products = normal(12, rows, n), nans(rows, n), nans(rows, n)
    clean(launch(kernels.scan, arch, (rows,), [x, sums, products, n], {"BLOCK": 256}))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(sums, np.cumsum(wide, 1), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(products, np.cumprod(1 + wide * 0.01, 1), rtol=1e-4)


@pytest.mark.parametrize("arch", MAIN_ARCHS)
def test_atomics(arch: str) -> None:
    n, bins = 500, 8
    x = np.random.default_rng(13).integers(0, 1000, n, np.int32)
    total, highest = np.zeros(4, np.float32), np.full(1, -5, np.int32)
    counts, old = np.zeros(bins, np.int32), np.full(n, -1, np.int32)
    arguments = [x, total, highest, counts, old, n]
    clean(launch(kernels.atomics, arch, (2,), arguments, {"BINS": bins, "BLOCK": 256}))
    np.testing.assert_array_equal(total, np.bincount(x % 4, x, 4))
    assert highest[0] == x.max()
    np.testing.assert_array_equal(counts, np.bincount(x % bins, minlength=bins))
    for value in range(bins):  # every lane saw another count
        assert sorted(old[x % bins == value]) == list(range(counts[value]))


@pytest.mark.parametrize("arch", MAIN_ARCHS)
def test_attention(arch: str) -> None:
    heads, queries, keys, d = 2, 37, 37, 32
    q, k, v = (normal(s, heads, queries, d).astype(np.float16) for s in (14, 15, 16))
    out = nans(heads, queries, d)
    sizes = {"D": d, "BQ": 32, "BK": 32}
    clean(
        launch(kernels.attention, arch, (2, heads), [q, k, v, out, queries, keys, d**-0.5], sizes)
    )
    score = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2) * d**-0.5
    score[:, np.triu(np.ones((queries, keys), bool), 1)] = -np.inf
    p = np.exp(score - score.max(2, keepdims=True))
    want = p / p.sum(2, keepdims=True) @ v.astype(np.float64)
    np.testing.assert_allclose(out, want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("arch", ["gfx1100", "gfx90a"])
def test_registers_that_do_not_fit_live_in_scratch(arch: str) -> None:
    """RDNA3 spills by scratch_*, gfx90a through a buffer resource over private memory."""
    a, b = (normal(s, *shape).astype(np.float16) for s, shape in ((19, (61, 32)), (20, (32, 90))))
    c = nans(61, 90)
    sizes = {"BM": 128 if arch == "gfx90a" else 64, "BN": 128, "BK": 32, "ACC": tl.float32}
    types = {"a": "*fp16", "b": "*fp16", "c": "*fp32", "M": "i32", "N": "i32", "K": "i32"}
    done = kernels.compiled(
        kernels.matmul, arch, tuple(types.items()), tuple(sizes.items()), (("num_warps", 1),)
    )
    kernel = read_code_object(done.asm["hsaco"]).kernels["matmul"]
    assert kernel.vgpr_spills > 0 and kernel.scratch_bytes > 0
    clean(launch(kernels.matmul, arch, (1, 1), [a, b, c, 61, 90, 32], sizes, num_warps=1))
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)


@pytest.mark.parametrize("flush", [False, True])
def test_denormals_as_the_kernel_wants_them(flush: bool) -> None:
    x = np.array([1e-39, 1.0, -2e-40, 2.0**-126], np.float32)
    y = np.array([1e-39, 2.0, 1e-41, -(2.0**-127)], np.float32)
    out = nans(4)
    launch(
        kernels.vector_add,
        "gfx1100",
        (1,),
        [x, y, out, 4],
        {"BLOCK": 256},
        allow_flush_denorm=flush,
    )
    want = x + y
    np.testing.assert_array_equal(out, np.where(abs(want) < 2.0**-126, 0, want) if flush else want)


@pytest.mark.parametrize("kind", ["float32", "float8_e4m3fn"])
def test_matmul_with_gfx950s_larger_instructions(kind: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, kind, kind))
    a, b = (normal(s, *shape).astype(dtype) for s, shape in ((21, (70, 64)), (22, (64, 60))))
    c = nans(70, 60)
    sizes = {"BM": 64, "BN": 64, "BK": 64, "ACC": tl.float32}
    clean(launch(kernels.matmul, "gfx950", (2, 1), [a, b, c, 70, 60, 64], sizes))
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)


def test_matmul_in_xf32() -> None:
    a, b, c = normal(23, 32, 32), normal(24, 32, 32), nans(32, 32)
    sizes = {"BM": 32, "BN": 32, "BK": 32, "ACC": tl.float32}
    clean(launch(kernels.matmul, "gfx942", (1, 1), [a, b, c, 32, 32, 32], sizes))
    error = np.abs(c - a.astype(np.float64) @ b.astype(np.float64))
    assert 1e-4 < error.max() < 0.05  # ten bits of the inputs' mantissas


@pytest.mark.parametrize("warps", [1, 2, 8])
def test_other_numbers_of_waves(warps: int) -> None:
    a, b = normal(17, 64, 64).astype(np.float16), normal(18, 64, 64).astype(np.float16)
    c = nans(64, 64)
    sizes = {"BM": 64, "BN": 64, "BK": 32, "ACC": tl.float32}
    clean(launch(kernels.matmul, "gfx1100", (1, 1), [a, b, c, 64, 64, 64], sizes, num_warps=warps))
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)
