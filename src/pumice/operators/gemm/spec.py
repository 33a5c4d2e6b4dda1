"""gemm: a dense product with its epilogue, the linear layer of every model.

attrs: activation ("none", "silu", "gelu" with the error function, "gelu_tanh", "relu"); precision,
for float32 inputs only: "ieee" (default) or "tf32", which lets products round their factors to 10
bits where the device has that (elsewhere they stay float32); out_dtype (default: that of x).
Sums are float32. x, w, residual and out may have gaps between rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.gemm.shapes import MODEL_LINEARS
from pumice.operators.triton.plan import Problem, TensorSpec, Work

Cases = list[tuple[dict[str, Any], dict[str, np.ndarray]]]

# ‖error‖ / ‖reference‖ by the output's type (rounding alone gives a third of it), or by the
# numeric path.
TOLERANCE: Mapping[str, float] = {
    "float32": 5e-6, "float16": 1e-3, "bfloat16": 5e-3, "tf32": 2e-3,
}  # fmt: skip


def activate(y: np.ndarray, activation: str) -> np.ndarray:
    """An activation in float64."""
    found: np.ndarray = y
    with np.errstate(over="ignore"):
        if activation == "silu":
            found = y / (1.0 + np.exp(-y))
        elif activation == "gelu":
            erf = np.vectorize(math.erf, otypes=[np.float64])
            found = 0.5 * y * (1.0 + erf(y / math.sqrt(2)))
        elif activation == "gelu_tanh":
            found = 0.5 * y * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        elif activation == "relu":
            found = np.maximum(y, 0.0)
    return found


def epilogue(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray], y: np.ndarray
) -> dict[str, np.ndarray]:
    """bias, activation, residual, in float64."""
    if "bias" in inputs:
        y = y + inputs["bias"].astype(np.float64)
    y = activate(y, str(attrs.get("activation", "none")))
    if "residual" in inputs:
        y = y + inputs["residual"].astype(np.float64)
    return {"out": y}


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    x, w = inputs["x"].astype(np.float64), inputs["w"].astype(np.float64)
    return epilogue(attrs, inputs, x @ w.T)


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    x, w = specs["x"], specs["w"]
    return {"out": TensorSpec((x.shape[0], w.shape[0]), str(attrs.get("out_dtype", x.dtype)))}


def work(problem: Problem) -> Work:
    m, k = problem["x"].shape
    n = problem["w"].shape[0]
    moved = sum(tensor.nbytes for tensor in problem.tensors.values())
    return Work(moved, 2.0 * m * n * k, problem["x"].dtype)


def cases(rng: np.random.Generator) -> Cases:
    """No row, one row, primes, sizes that end inside a block, every epilogue."""
    found: Cases = []
    for index, (m, n, k) in enumerate(
        ((5, 123, 123), (0, 32, 64), (1, 769, 123), (3, 96, 256), (17, 40, 769), (129, 65, 96),
         (304, 48, 64), (336, 33, 40), (8, 64, 1024), (2, 7, 513), (4, 128, 0))
    ):  # fmt: skip
        dtype = np.dtype((ml_dtypes.bfloat16, np.float16, np.float32)[index % 3])
        attrs: dict[str, Any] = {}
        inputs = {
            "x": rng.standard_normal((m, k), np.float32).astype(dtype),
            "w": rng.standard_normal((n, k), np.float32).astype(dtype),
        }
        if index % 2:
            inputs["bias"] = rng.standard_normal(n, np.float32).astype(dtype)
        if index % 3 == 1:
            inputs["residual"] = rng.standard_normal((m, n), np.float32).astype(dtype)
        activation = ("none", "silu", "gelu", "gelu_tanh", "relu")[index % 5]
        if activation != "none":
            attrs["activation"] = activation
            inputs["w"] = (inputs["w"].astype(np.float32) / max(k, 1) ** 0.5).astype(dtype)
        if index % 4 == 3:
            attrs["out_dtype"] = "float32"
        found.append((attrs, inputs))
    found.append(({"precision": "tf32"}, {
        "x": rng.standard_normal((19, 96), np.float32),
        "w": rng.standard_normal((37, 96), np.float32),
    }))  # fmt: skip
    return found


SPEC = OperatorSpec(
    name="gemm",
    formula="out[m, n] = activation(Σ_k x[m, k]·w[n, k] + bias[n]) + residual[m, n]",
    axes={"M": "rows of x, tokens", "N": "features out", "K": "features in"},
    inputs={
        "x": "bfloat16 | float16 | float32 [M, K]", "w": "as x [N, K]",
        "bias": "any float [N], optional", "residual": "any float [M, N], optional",
    },
    outputs={"out": "out_dtype [M, N]"},
    reference=reference,
    tolerance=TOLERANCE,
    cases=cases,
    triton_kernels=(
        "pumice.operators.gemm.few_rows:GemmFewRows",
        "pumice.operators.gemm.hopper_plan:GemmSpecialized",
        "pumice.operators.gemm.hopper_plan:GemmStreamed",
        "pumice.operators.gemm.triton_plan:GemmTiled",
        "pumice.operators.gemm.triton_plan:GemmSplitK",
        "pumice.operators.gemm.triton_plan:GemmStreamK",
        "pumice.operators.gemm.triton_plan:GemmVector",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip

BENCH: tuple[tuple[str, Mapping[str, Any], Mapping[str, TensorSpec]], ...] = tuple(
    (f"{label} M={m}", {}, {name: TensorSpec((rows, k), "bfloat16") for name, rows in pair})
    for label, n, k in MODEL_LINEARS
    for m in (1, 4, 16, 64, 512, 4096)
    for pair in [(("x", m), ("w", n))]
)  # fmt: skip
