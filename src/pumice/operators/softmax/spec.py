"""softmax: exp(scale · x − max) / Σ of rows, or its logarithm.

attrs: scale (default 1), log (default False), out_dtype (default x's).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.triton.plan import Problem, TensorSpec, Work


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    x = inputs["x"].astype(np.float64) * attrs.get("scale", 1.0)
    x = x - x.max(axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(divide="ignore"):
        value = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
    dtype = numpy_dtype(str(attrs.get("out_dtype", inputs["x"].dtype.name)))
    value = value if attrs.get("log") else np.exp(value)
    return {"out": value.astype(np.float32).astype(dtype)}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    return {"out": TensorSpec(specs["x"].shape, str(attrs.get("out_dtype", specs["x"].dtype)))}


def work(problem: Problem) -> Work:
    return Work(sum(spec.nbytes for spec in problem.tensors.values()))


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Odd widths, no rows, one column, masked (−∞) and huge entries."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    half, brain, full = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
    for rows, width, dtype, attrs in (
        (5, 123, half, {}),
        (0, 64, half, {}),
        (2, 1, full, {}),
        (3, 769, brain, {"scale": 0.5}),
        (2, 1200, full, {"log": True}),
        (3, 500, half, {"out_dtype": "float32"}),
        (2, 4099, brain, {}),
    ):
        x = rng.standard_normal((rows, width)) * 5
        if rows > 1 and width > 10:
            x[0, :5] = -np.inf
            x[1] += 100
        if attrs.get("log"):
            x = np.maximum(x, -50)
        found.append((dict(attrs), {"x": x.astype(dtype)}))
    return found


BENCH: tuple[tuple[str, dict[str, Any], dict[str, TensorSpec]], ...] = tuple(
    (f"{rows}x{width} {dtype}", {}, {"x": TensorSpec((rows, width), dtype)})
    for rows, width, dtype in (
        (4096, 4096, "bfloat16"),
        (32, 32000, "float32"),
        (32, 128256, "float32"),  # Llama-3
        (32, 152064, "bfloat16"),  # Qwen
        (16384, 1024, "bfloat16"),
    )
)

SPEC = OperatorSpec(
    name="softmax",
    formula="out[t, v] = exp(s·x[t, v] − m) / Σ exp(s·x[t] − m), m = max s·x[t]",
    axes={"T": "rows", "V": "width"},
    inputs={"x": "float[T, V]"},
    outputs={"out": "float[T, V]"},
    reference=reference,
    tolerance={"float32": 2e-6, "float16": 1e-3, "bfloat16": 5e-3},
    cases=cases,
    triton_kernels=(
        "pumice.operators.softmax.triton_plan:Softmax",
        "pumice.operators.softmax.triton_plan:SoftmaxShares",
    ),
    output_specs=output_specs,
    work=work,
)
