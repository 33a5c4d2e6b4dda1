"""norm: RMSNorm (arXiv:1910.07467) or LayerNorm (arXiv:1607.06450) of rows, with what stands beside
them in a model: the residual addition before, the quantization for the next product after.

attrs: kind "rms" or "layer"; eps; weight_offset (Gemma multiplies by 1 + weight; default 0);
quantize, out_dtype, power_of_two as in `quantize_fp8/rows.py`. Without quantize, out_dtype is that
of a float result (default: that of x). The residual may be wider than x: a float32 stream takes the
sum in float32, and the norm reads what it stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.quantize_fp8.rows import quantize_rows, row_outputs
from pumice.operators.triton.plan import Problem, TensorSpec, Work


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    x = inputs["x"].astype(np.float64)
    found: dict[str, np.ndarray] = {}
    if "residual" in inputs:
        stored = (x + inputs["residual"].astype(np.float64)).astype(np.float32)
        found["residual"] = stored.astype(inputs["residual"].dtype)
        x = found["residual"].astype(np.float64)
    if attrs["kind"] == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + attrs["eps"])
    if "weight" in inputs:
        x = x * (inputs["weight"].astype(np.float64) + attrs.get("weight_offset", 0.0))
    if "bias" in inputs:
        x = x + inputs["bias"].astype(np.float64)
    return found | quantize_rows(attrs, x, float_dtype(attrs, inputs["x"].dtype.name))


def float_dtype(attrs: Mapping[str, Any], dtype: str) -> str:
    """Of a result that is not quantized, where x has `dtype`."""
    return dtype if attrs.get("quantize") else str(attrs.get("out_dtype", dtype))


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    x = specs["x"]
    found = row_outputs(attrs, x.shape[0], x.shape[1], float_dtype(attrs, x.dtype))
    if "residual" in specs:
        found["residual"] = specs["residual"]
    return found


def work(problem: Problem) -> Work:
    """Bytes only: every tensor once, the residual twice."""
    nbytes = sum(spec.nbytes for spec in problem.tensors.values())
    if "residual" in problem:
        nbytes += problem["residual"].nbytes
    return Work(nbytes)


Case = tuple[dict[str, Any], dict[str, np.ndarray]]


def cases(rng: np.random.Generator) -> list[Case]:
    """Odd widths, no rows, one row, a row of zeros, large and small values, every option."""
    found: list[Case] = []

    def add(
        rows: int,
        width: int,
        dtype: Any,
        *,
        residual: Any = None,
        bias: bool = False,
        **attrs: Any,
    ) -> None:
        dtype = np.dtype(dtype)
        x = rng.standard_normal((rows, width)) * 10.0 ** rng.integers(-2, 3, (rows, 1))
        if rows > 2:
            x[1] = 0
        inputs = {"x": x.astype(dtype)}
        if residual is not None:
            inputs["residual"] = rng.standard_normal((rows, width)).astype(residual)
        if not attrs.pop("no_weight", False):
            inputs["weight"] = rng.standard_normal(width).astype(dtype)
        if bias:
            inputs["bias"] = rng.standard_normal(width).astype(dtype)
        found.append(({"kind": "rms", "eps": 1e-5, **attrs}, inputs))

    half, brain = np.float16, ml_dtypes.bfloat16
    fp8, fnuz = "float8_e4m3fn", "float8_e4m3fnuz"
    add(5, 123, half)
    add(0, 64, half)
    add(1, 1, np.float32)
    add(7, 769, half, residual=half)
    add(3, 769, brain, kind="layer", bias=True)
    add(2, 4096, brain, weight_offset=1.0)
    add(2, 123, half, kind="layer", residual=half)
    add(3, 300, brain, kind="layer", no_weight=True)
    add(5, 384, half, quantize="token", out_dtype=fp8)
    add(3, 1536, brain, residual=brain, quantize="group", out_dtype=fp8)
    add(3, 769, half, quantize="group", out_dtype=fp8, power_of_two=True)
    add(3, 769, brain, quantize="token", out_dtype="int8")
    add(3, 512, half, quantize="group", out_dtype="int8")
    add(2, 200, half, kind="layer", bias=True, quantize="token", out_dtype="int8")
    add(3, 256, half, quantize="token", out_dtype=fnuz)
    full = np.float32
    add(5, 123, half, residual=full)
    add(3, 1030, brain, residual=full, kind="layer", bias=True)
    add(4, 576, full, out_dtype="float16")
    add(3, 64, full, residual=full, out_dtype="bfloat16", weight_offset=1.0)
    add(3, 384, half, residual=full, quantize="token", out_dtype="int8")
    return found


def bench_problem(rows: int, width: int, dtype: str, **attrs: Any) -> Any:
    """(label, attrs, input specs) of a row of BENCH."""
    residual = attrs.pop("residual", True)
    inputs = {"x": TensorSpec((rows, width), dtype), "weight": TensorSpec((width,), dtype)}
    if residual:
        inputs["residual"] = TensorSpec((rows, width), dtype)
    label = f"{attrs.get('kind', 'rms')}{'+add' if residual else ''} {rows}x{width}"
    if "quantize" in attrs:
        label += f" → {attrs['out_dtype']} a {attrs['quantize']}"
    return label, {"kind": "rms", "eps": 1e-5, **attrs}, inputs


_FP8 = {"out_dtype": "float8_e4m3fn"}
BENCH = tuple(
    bench_problem(rows, width, "bfloat16", **options)
    for rows, width, options in (
        (1, 4096, {}),  # Llama-2-7B, Llama-3-8B
        (32, 4096, {}),
        (4096, 4096, {}),
        (4096, 4096, {"residual": False}),
        (4096, 5120, {}),  # Llama-2-13B, Qwen3-14B
        (4096, 8192, {}),  # Llama-3-70B
        (16384, 8192, {}),
        (4096, 16384, {}),
        (65536, 128, {"residual": False}),  # q and k norm of Qwen3
        (4096, 7168, {"quantize": "group", **_FP8}),  # DeepSeek-V3
        (4096, 8192, {"quantize": "token", **_FP8}),
        (4096, 8192, {"quantize": "token", "out_dtype": "int8"}),
        (4096, 8192, {"kind": "layer", "residual": False}),
        (8192, 769, {"residual": False}),
    )
)  # fmt: skip

SPEC = OperatorSpec(
    name="norm",
    formula="residual += x; out = (r − mean) · rsqrt(var + eps) · (weight + offset) + bias",
    axes={"T": "rows", "H": "width", "G": "scales a row"},
    inputs={
        "x": "float[T, H]", "residual": "float[T, H] (optional, changed in place)",
        "weight": "float[H] (optional)", "bias": "float[H] (optional)",
    },
    outputs={"out": "float, float8 or int8 [T, H]", "scales": "float32[T, G]"},
    reference=reference,
    tolerance={
        "float32": 1e-6, "float16": 1e-3, "bfloat16": 5e-3, "int8": 1e-2,
        "float8_e4m3fn": 1.5e-2, "float8_e4m3fnuz": 1.5e-2,
    },
    cases=cases,
    triton_kernels=(
        "pumice.operators.norm.triton_plan:NormRows",
        "pumice.operators.norm.triton_plan:NormLoop",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip
