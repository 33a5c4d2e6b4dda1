"""Triton's dot products, compiled for each architecture and run on the emulated card, against
NumPy: the compiler's idea of a matrix instruction's registers and the emulator's must be the same.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from emulator_kernels import compiled

from pumice.emulator.emulator import Emulator


@triton.jit
def dot(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
        OUT: tl.constexpr):  # fmt: skip
    rm, rn, rk = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + rm[:, None] * K + rk[None, :])
    right = tl.load(b + rk[:, None] * N + rn[None, :])
    out = tl.dot(left, right, input_precision=PRECISION, out_dtype=OUT)
    tl.store(c + rm[:, None] * N + rn[None, :], out)


@triton.jit
def dot_scaled(a, a_scale, b, b_scale, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
               A: tl.constexpr, B: tl.constexpr, PACK_A: tl.constexpr,
               PACK_B: tl.constexpr):  # fmt: skip
    rm, rn, rs = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    ra, rb = tl.arange(0, K // PACK_A), tl.arange(0, K // PACK_B)
    left = tl.load(a + rm[:, None] * (K // PACK_A) + ra[None, :])
    right = tl.load(b + rb[:, None] + rn[None, :] * (K // PACK_B))
    left_scale = tl.load(a_scale + rm[:, None] * (K // 32) + rs[None, :])
    right_scale = tl.load(b_scale + rn[:, None] * (K // 32) + rs[None, :])
    out = tl.dot_scaled(left, left_scale, A, right, right_scale, B)
    tl.store(c + rm[:, None] * N + rn[None, :], out)


TYPES: dict[str, Any] = {
    "fp16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "fp32": np.float32,
    "fp64": np.float64,
    "i8": np.int8,
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e5": ml_dtypes.float8_e5m2,
    "fp8e4b8": ml_dtypes.float8_e4m3fnuz,
    "fp8e5b16": ml_dtypes.float8_e5m2fnuz,
}
HALF = ("fp16", "bf16")
# arch, type, its instruction, options.
DOTS = [
    *[("gfx1100", t, f"v_wmma_f32_16x16x16_{t[:2].replace('fp', 'f')}16", {}) for t in HALF],
    ("gfx1100", "i8", "v_wmma_i32_16x16x16_iu8", {}),
    *[("gfx1201", t, f"v_wmma_f32_16x16x16_{t[:2].replace('fp', 'f')}16", {}) for t in HALF],
    ("gfx1201", "i8", "v_wmma_i32_16x16x16_iu8", {}),
    ("gfx1201", "fp8e4nv", "v_wmma_f32_16x16x16_fp8_fp8", {}),
    ("gfx1201", "fp8e5", "v_wmma_f32_16x16x16_bf8_bf8", {}),
    ("gfx90a", "fp16", "v_mfma_f32_16x16x16f16", {"matrix_instr_nonkdim": 16}),
    ("gfx90a", "bf16", "v_mfma_f32_32x32x8bf16_1k", {"matrix_instr_nonkdim": 32}),
    ("gfx942", "fp16", "v_mfma_f32_32x32x8_f16", {"matrix_instr_nonkdim": 32}),
    ("gfx942", "bf16", "v_mfma_f32_16x16x16_bf16", {"matrix_instr_nonkdim": 16}),
    ("gfx950", "fp16", "v_mfma_f32_16x16x32_f16", {"matrix_instr_nonkdim": 16}),
    ("gfx950", "bf16", "v_mfma_f32_32x32x16_bf16", {"matrix_instr_nonkdim": 32}),
    ("gfx90a", "i8", "v_mfma_i32_16x16x16i8", {"matrix_instr_nonkdim": 16}),
    ("gfx942", "i8", "v_mfma_i32_32x32x16_i8", {"matrix_instr_nonkdim": 32}),
    ("gfx950", "i8", "v_mfma_i32_16x16x64_i8", {"matrix_instr_nonkdim": 16}),
    ("gfx942", "fp8e4b8", "v_mfma_f32_16x16x32_fp8_fp8", {"matrix_instr_nonkdim": 16}),
    ("gfx942", "fp8e5b16", "v_mfma_f32_32x32x16_bf8_bf8", {"matrix_instr_nonkdim": 32}),
    ("gfx950", "fp8e4nv", "v_mfma_f32_16x16x128_f8f6f4", {"matrix_instr_nonkdim": 16}),
    ("gfx950", "fp8e5", "v_mfma_f32_32x32x64_f8f6f4", {"matrix_instr_nonkdim": 32}),
    ("gfx942", "fp32", "v_mfma_f32_16x16x4_f32", {"matrix_instr_nonkdim": 16}),
    ("gfx90a", "fp32", "v_mfma_f32_32x32x2f32", {"matrix_instr_nonkdim": 32}),
    ("gfx942", "tf32", "v_mfma_f32_16x16x8_xf32", {"matrix_instr_nonkdim": 16}),
    ("gfx942", "tf32", "v_mfma_f32_32x32x4_xf32", {"matrix_instr_nonkdim": 32}),
    ("gfx942", "fp64", "v_mfma_f64_16x16x4_f64", {}),
]
M, N, K = 64, 32, 128


@pytest.mark.parametrize(("arch", "kind", "expected", "options"), DOTS)
def test_dot(arch: str, kind: str, expected: str, options: dict[str, int]) -> None:
    xf32 = kind == "tf32"
    element = "fp32" if xf32 else kind
    out = {"i8": "i32", "fp64": "fp64"}.get(element, "fp32")
    signature = {"a": f"*{element}", "b": f"*{element}", "c": f"*{out}"}
    constants = {
        "M": M, "N": N, "K": K, "PRECISION": "tf32" if xf32 else "ieee",
        "OUT": {"i32": tl.int32, "fp64": tl.float64, "fp32": tl.float32}[out],
    }  # fmt: skip
    signature |= dict.fromkeys(constants, "constexpr")
    kernel = compiled(
        dot, arch, tuple(signature.items()), tuple(constants.items()),
        tuple(sorted({"num_warps": 2, **options}.items())),
    )  # fmt: skip
    names = {line.split()[0] for line in kernel.asm["amdgcn"].splitlines() if "mma_" in line}
    names |= {line.split()[0] for line in kernel.asm["amdgcn"].splitlines() if "v_mfma_" in line}
    assert any(name.startswith(expected) for name in names), names
    random = np.random.default_rng(3)
    dtype = TYPES[element]
    if element == "i8":
        a, b = (random.integers(-128, 128, s).astype(np.int8) for s in ((M, K), (K, N)))
    else:
        normal = [random.standard_normal(s).astype(np.float32) for s in ((M, K), (K, N))]
        # Nothing near denormals, which gfx90a drops: another test's matter.
        a, b = (np.where(np.abs(v) < 0.01, np.float32(0.5), v).astype(dtype) for v in normal)
    wide = np.int64 if element == "i8" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    if xf32:
        x, y = ((v.view(np.uint32) & 0xFFFFE000).view(np.float32).astype(wide) for v in (a, b))
    reference = x @ y
    gpu = Emulator(arch)
    gpu.load(kernel.asm["hsaco"])
    left, right = (gpu.upload(v.view(np.uint8)) for v in (a, b))
    result_type = {"i32": np.int32, "fp64": np.float64, "fp32": np.float32}[out]
    c = gpu.upload(np.full((M, N), 0x7F, result_type))
    wave = 64 if arch.startswith("gfx9") else 32
    gpu.launch(
        "dot", (1, 1, 1), (2 * wave, 1, 1), [left, right, c], lds_bytes=kernel.metadata.shared
    ).check()
    actual = gpu.download(c, (M, N), result_type)
    if element == "i8":
        np.testing.assert_array_equal(actual, reference)
    else:
        bound = (np.abs(x) @ np.abs(y)) * (2.0**-50 if out == "fp64" else 2.0**-22)
        assert (np.abs(actual - reference) <= bound).all()


def codes(random: np.random.Generator, kind: str, shape: tuple[int, int]) -> tuple[Any, Any]:
    """(bytes as Triton wants them, values): e2m1 has two values a byte."""
    dtype = {
        "e4m3": ml_dtypes.float8_e4m3fn,
        "e5m2": ml_dtypes.float8_e5m2,
        "e2m1": ml_dtypes.float4_e2m1fn,
    }[kind]
    values = (2 * random.standard_normal(shape)).astype(np.float32).astype(dtype)
    raw = values.view(np.uint8)
    if kind == "e2m1":
        raw = raw[:, 0::2] | raw[:, 1::2] << 4
    return np.ascontiguousarray(raw), values.astype(np.float64)


@pytest.mark.parametrize(
    ("left", "right", "size"),
    [
        ("e4m3", "e4m3", 16),
        ("e5m2", "e4m3", 32),
        ("e2m1", "e2m1", 16),
        ("e2m1", "e2m1", 32),
        ("e4m3", "e2m1", 16),
        ("e2m1", "e5m2", 32),
    ],
)
def test_scaled_dot(left: str, right: str, size: int) -> None:
    depth = 256
    packs = [2 if kind == "e2m1" else 1 for kind in (left, right)]
    pointers = {"e4m3": "*fp8e4nv", "e5m2": "*fp8e5", "e2m1": "*u8"}
    constants = {
        "M": M, "N": N, "K": depth, "A": left, "B": right, "PACK_A": packs[0], "PACK_B": packs[1],
    }  # fmt: skip
    signature = {
        "a": pointers[left], "a_scale": "*u8", "b": pointers[right], "b_scale": "*u8", "c": "*fp32",
        **dict.fromkeys(constants, "constexpr"),
    }  # fmt: skip
    kernel = compiled(
        dot_scaled, "gfx950", tuple(signature.items()), tuple(constants.items()),
        (("matrix_instr_nonkdim", size), ("num_warps", 2)),
    )  # fmt: skip
    shape = {16: "16x16x128", 32: "32x32x64"}[size]
    assert f"v_mfma_scale_f32_{shape}_f8f6f4" in kernel.asm["amdgcn"]
    random = np.random.default_rng(9)
    a, x = codes(random, left, (M, depth))
    b, y = codes(random, right, (N, depth))
    scales = [random.integers(122, 133, (rows, depth // 32)).astype(np.uint8) for rows in (M, N)]
    x, y = (
        v * np.exp2(s.astype(np.float64) - 127).repeat(32, axis=1)
        for v, s in zip((x, y), scales, strict=True)
    )
    gpu = Emulator("gfx950")
    gpu.load(kernel.asm["hsaco"])
    c = gpu.upload(np.full((M, N), np.nan, np.float32))
    pointers_ = [gpu.upload(v) for v in (a, scales[0], b, scales[1])]
    gpu.launch(
        "dot_scaled", (1, 1, 1), (128, 1, 1), [*pointers_, c], lds_bytes=kernel.metadata.shared
    ).check()
    actual = gpu.download(c, (M, N), np.float32)
    bound = (np.abs(x) @ np.abs(y).T) * 2.0**-22
    assert (np.abs(actual - x @ y.T) <= bound).all()
