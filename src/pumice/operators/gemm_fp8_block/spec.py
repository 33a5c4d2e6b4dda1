"""gemm_fp8_block: x·wᵀ of 8-bit floats with scales per 1 × 128 of x and per 128 × 128 of w.

The scheme of DeepSeek-V3 (arXiv:2412.19437, 3.3.2). N and K may end inside a block. Sums of a block
are scaled and added in float32. attrs: out_dtype ("bfloat16" by default), activation as in `gemm`.
float8_e4m3fnuz is CDNA3's own type; a device without a matrix unit for the type given multiplies
as float16, which holds every value of both exactly. x_scale may have any strides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.gemm.shapes import DEEPSEEK_LINEARS
from pumice.operators.gemm.spec import TOLERANCE, Cases, epilogue, work
from pumice.operators.triton.plan import TensorSpec, cdiv

GROUP = 128


def expand(scale: np.ndarray, rows: int, width: int, group_m: int) -> np.ndarray:
    """Block scales as one a number, float64."""
    wide = np.repeat(np.repeat(scale.astype(np.float64), group_m, 0), GROUP, 1)
    return wide[:rows, :width]


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    x, w = inputs["x"].astype(np.float64), inputs["w"].astype(np.float64)
    x *= expand(inputs["x_scale"], x.shape[0], x.shape[1], 1)
    w *= expand(inputs["w_scale"], w.shape[0], w.shape[1], GROUP)
    return epilogue(attrs, inputs, x @ w.T)


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    shape = (specs["x"].shape[0], specs["w"].shape[0])
    return {"out": TensorSpec(shape, str(attrs.get("out_dtype", "bfloat16")))}


def cases(rng: np.random.Generator) -> Cases:
    """No row, one row, N and K that end inside a block, CDNA3's type."""
    found: Cases = []
    for index, (m, n, k) in enumerate(
        ((5, 123, 123), (0, 128, 128), (1, 257, 384), (3, 64, 300), (17, 300, 512),
         (129, 130, 256), (304, 40, 128), (8, 48, 1024), (2, 7, 513))
    ):  # fmt: skip
        dtype = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz)[index % 3 == 2]
        attrs: dict[str, Any] = {}
        inputs = {
            "x": rng.standard_normal((m, k), np.float32).astype(dtype),
            "w": rng.standard_normal((n, k), np.float32).astype(dtype),
            "x_scale": np.exp(rng.standard_normal((m, cdiv(k, GROUP)), np.float32)),
            "w_scale": np.exp(rng.standard_normal((cdiv(n, GROUP), cdiv(k, GROUP)), np.float32)),
        }
        if index % 2:
            inputs["bias"] = rng.standard_normal(n, np.float32).astype(ml_dtypes.bfloat16)
        if index % 3 == 1:
            attrs["out_dtype"] = "float16"
            inputs["residual"] = rng.standard_normal((m, n), np.float32).astype(np.float16)
        if index % 4 == 3:
            attrs["activation"] = "silu"
        found.append((attrs, inputs))
    return found


SPEC = OperatorSpec(
    name="gemm_fp8_block",
    formula="out[m, n] = activation(Σ_k x[m, k]·x_scale[m, k/128]·w[n, k]·w_scale[n/128, k/128]"
    " + bias[n]) + residual[m, n]",
    axes={"M": "rows of x, tokens", "N": "features out", "K": "features in"},
    inputs={
        "x": "float8_e4m3fn | float8_e4m3fnuz [M, K]", "w": "as x [N, K]",
        "x_scale": "float32 [M, ceil(K/128)]",
        "w_scale": "float32 [ceil(N/128), ceil(K/128)]",
        "bias": "any float [N], optional", "residual": "any float [M, N], optional",
    },
    outputs={"out": "out_dtype [M, N]"},
    reference=reference,
    tolerance=TOLERANCE,
    cases=cases,
    triton_kernels=(
        "pumice.operators.gemm_fp8_block.hopper_plan:BlockSpecialized",
        "pumice.operators.gemm_fp8_block.triton_plan:BlockTiled",
        "pumice.operators.gemm_fp8_block.triton_plan:BlockSplitK",
        "pumice.operators.gemm_fp8_block.triton_plan:BlockStreamK",
        "pumice.operators.gemm_fp8_block.triton_plan:BlockVector",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip


def tensors(m: int, n: int, k: int, dtype: str = "float8_e4m3fn") -> dict[str, TensorSpec]:
    """Inputs without an epilogue."""
    return {
        "x": TensorSpec((m, k), dtype),
        "w": TensorSpec((n, k), dtype),
        "x_scale": TensorSpec((m, cdiv(k, GROUP)), "float32"),
        "w_scale": TensorSpec((cdiv(n, GROUP), cdiv(k, GROUP)), "float32"),
    }


BENCH: tuple[tuple[str, Mapping[str, Any], Mapping[str, TensorSpec]], ...] = tuple(
    (f"{label} M={m}", {}, tensors(m, n, k))
    for label, n, k in DEEPSEEK_LINEARS
    for m in (1, 8, 64, 512, 1024, 4096)
)
