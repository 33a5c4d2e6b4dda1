"""gemm_fp8: x·wᵀ of 8-bit floats; one scale for x or one a row, one scale for w or one a row.

A scale that is one number may be a scalar (no axes) or have one element; a scale a row may be
[M], [M, 1] or [1, N]. attrs: out_dtype ("bfloat16" by default), activation as in `gemm`;
fast_accum (False by default) leaves sums in the matrix unit until K ends, which on NVIDIA's before
sm_100 keeps about 14 bits of them (arXiv:2412.19437, 3.3.2); otherwise they are added in float32
every 128 of K.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.gemm.shapes import MODEL_LINEARS
from pumice.operators.gemm.spec import TOLERANCE, Cases, epilogue, work
from pumice.operators.triton.plan import TensorSpec

AXES = {"M": "rows of x, tokens", "N": "features out", "K": "features in"}
FORMULA = (
    "out[m, n] = activation(x_scale[m]·w_scale[n]·Σ_k x[m, k]·w[n, k] + bias[n]) + residual[m, n]"
)


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    y = inputs["x"].astype(np.float64) @ inputs["w"].astype(np.float64).T
    if "x_scale" in inputs:
        y = y * inputs["x_scale"].astype(np.float64).reshape(-1, 1)
    if "w_scale" in inputs:
        y = y * inputs["w_scale"].astype(np.float64).reshape(1, -1)
    return epilogue(attrs, inputs, y)


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    shape = (specs["x"].shape[0], specs["w"].shape[0])
    return {"out": TensorSpec(shape, str(attrs.get("out_dtype", "bfloat16")))}


def scaled_cases(rng: np.random.Generator, dtypes: tuple[Any, ...]) -> Cases:
    """Every kind of scale, odd shapes, every epilogue; dtypes in turns."""
    found: Cases = []
    for index, (m, n, k) in enumerate(
        ((5, 123, 123), (0, 32, 64), (1, 257, 384), (3, 64, 300), (17, 100, 512), (129, 65, 96),
         (304, 40, 64), (336, 33, 48), (8, 48, 1024), (2, 7, 513), (16, 272, 256))
    ):  # fmt: skip
        dtype = np.dtype(dtypes[index % len(dtypes)])
        x, w = (rng.standard_normal((rows, k), np.float32) for rows in (m, n))
        if dtype.kind == "i":
            x, w = np.round(x * 40).clip(-128, 127), np.round(w * 40).clip(-128, 127)
        attrs: dict[str, Any] = {}
        inputs = {"x": x.astype(dtype), "w": w.astype(dtype)}
        x_shape = ((), (m,), (m, 1), (1,), None)[index % 5]
        w_shape = ((n,), (1,), (), None, (1, n), (n, 1))[index % 6]
        if x_shape is not None:
            inputs["x_scale"] = np.exp(rng.standard_normal(x_shape, np.float32))
        if w_shape is not None:
            inputs["w_scale"] = np.asarray(np.exp(rng.standard_normal(w_shape, np.float32)) / 9)
        if index % 2:
            inputs["bias"] = rng.standard_normal(n, np.float32).astype(ml_dtypes.bfloat16)
        if index % 3 == 1:
            # Sums of integers without a scale are beyond float16.
            attrs["out_dtype"] = "float32" if dtype.kind == "i" else "float16"
            inputs["residual"] = rng.standard_normal((m, n), np.float32).astype(np.float16)
        if index % 4 == 3:
            attrs["activation"] = "relu"
        found.append((attrs, {name: np.asarray(array) for name, array in inputs.items()}))
    return found


def cases(rng: np.random.Generator) -> Cases:
    found = scaled_cases(
        rng, (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e4m3fnuz)
    )
    attrs, inputs = found[-1]
    return [*found, ({**attrs, "fast_accum": True}, inputs)]


SPEC = OperatorSpec(
    name="gemm_fp8",
    formula=FORMULA,
    axes=AXES,
    inputs={
        "x": "float8_e4m3fn | float8_e4m3fnuz [M, K]", "w": "as x [N, K]",
        "x_scale": "float32 of 1 or M elements, optional",
        "w_scale": "float32 of 1 or N elements, optional",
        "bias": "any float [N], optional", "residual": "any float [M, N], optional",
    },
    outputs={"out": "out_dtype [M, N]"},
    reference=reference,
    tolerance=TOLERANCE,
    cases=cases,
    triton_kernels=(
        "pumice.operators.gemm_fp8.hopper_plan:Fp8Specialized",
        "pumice.operators.gemm_fp8.triton_plan:Fp8Tiled",
        "pumice.operators.gemm_fp8.triton_plan:Fp8SplitK",
        "pumice.operators.gemm_fp8.triton_plan:Fp8StreamK",
        "pumice.operators.gemm_fp8.triton_plan:Fp8Vector",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip


def tensors(m: int, n: int, k: int, dtype: str) -> dict[str, TensorSpec]:
    """Inputs with a scale per token and per channel."""
    return {
        "x": TensorSpec((m, k), dtype), "w": TensorSpec((n, k), dtype),
        "x_scale": TensorSpec((m, 1), "float32"), "w_scale": TensorSpec((n, 1), "float32"),
    }  # fmt: skip


def bench(
    dtype: str, rows: tuple[int, ...] = (1, 16, 64, 512, 4096)
) -> tuple[tuple[str, Mapping[str, Any], Mapping[str, TensorSpec]], ...]:
    """Products of models' layers with so many rows."""
    return tuple(
        (f"{label} M={m}", {}, tensors(m, n, k, dtype))
        for label, n, k in MODEL_LINEARS
        for m in rows
    )


BENCH = bench("float8_e4m3fn")
