"""activation_mul: act(gate) · up of a gated feed-forward block (arXiv:2002.05202), optionally
quantized for the next product.

attrs: activation "silu", "gelu" (by erf) or "gelu_tanh"; quantize, out_dtype, power_of_two as in
`quantize_fp8/rows.py`. x holds gate in columns 0 … F−1 and up in F … 2F−1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.quantize_fp8.rows import quantize_rows, row_outputs
from pumice.operators.triton.plan import Problem, TensorSpec, Work

ACTIVATIONS = {"silu": 1, "gelu": 2, "gelu_tanh": 3}  # as the kernels' ACTIVATION
_erf = np.vectorize(math.erf, otypes=[np.float64])


def activate(name: str, x: np.ndarray) -> np.ndarray:
    """The activation in float64."""
    if name == "silu":
        return np.asarray(x / (1.0 + np.exp(-x)))
    if name == "gelu":
        return np.asarray(0.5 * x * (1.0 + _erf(x / math.sqrt(2.0))))
    return np.asarray(0.5 * x * (1.0 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    x = inputs["x"].astype(np.float64)
    width = x.shape[1] // 2
    value = activate(str(attrs["activation"]), x[:, :width]) * x[:, width:]
    return quantize_rows(attrs, value, inputs["x"].dtype.name)


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    x = specs["x"]
    return row_outputs(attrs, x.shape[0], x.shape[1] // 2, x.dtype)


def work(problem: Problem) -> Work:
    return Work(sum(spec.nbytes for spec in problem.tensors.values()))


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Odd widths, no rows, gates at both ends of the sigmoid, every activation and output."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    half, brain = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
    for rows, width, dtype, activation, mode, name in (
        (5, 123, half, "silu", None, ""),
        (0, 64, half, "silu", None, ""),
        (1, 769, brain, "gelu", None, ""),
        (3, 769, brain, "gelu_tanh", None, ""),
        (2, 7, np.dtype(np.float32), "silu", None, ""),
        (3, 769, half, "silu", "group", "float8_e4m3fn"),
        (5, 384, brain, "silu", "token", "float8_e4m3fn"),
        (3, 300, half, "gelu_tanh", "token", "int8"),
        (3, 128, half, "silu", "group", "float8_e4m3fnuz"),
    ):
        x = (rng.standard_normal((rows, 2 * width)) * 3).astype(dtype)
        if rows > 1:
            x[0, :4] = (90.0, -90.0, 200.0, -200.0)
        attrs: dict[str, Any] = {"activation": activation}
        if mode:
            attrs |= {"quantize": mode, "out_dtype": name}
        found.append((attrs, {"x": x}))
    return found


def _bench(rows: int, width: int, **attrs: Any) -> Any:
    label = f"silu·mul {rows}x{width}"
    if attrs:
        label += f" → {attrs['out_dtype']} a {attrs['quantize']}"
    x = {"x": TensorSpec((rows, 2 * width), "bfloat16")}
    return label, {"activation": "silu", **attrs}, x


_FP8 = "float8_e4m3fn"
BENCH = (
    _bench(1, 11008),  # Llama-2-7B
    _bench(4096, 11008),
    _bench(4096, 14336),  # Llama-3-8B
    _bench(4096, 28672),  # Llama-3-70B
    _bench(4096, 18432, quantize="group", out_dtype=_FP8),  # DeepSeek-V3, dense layers
    _bench(32768, 2048, quantize="group", out_dtype=_FP8),  # its experts
    _bench(4096, 14336, quantize="token", out_dtype=_FP8),
    _bench(4096, 28672, quantize="token", out_dtype=_FP8),
    _bench(4096, 14336, quantize="token", out_dtype="int8"),
)

SPEC = OperatorSpec(
    name="activation_mul",
    formula="out[t, f] = act(x[t, f]) · x[t, F + f]",
    axes={"T": "rows", "F": "width of gate and of up", "G": "scales a row"},
    inputs={"x": "float[T, 2F]"},
    outputs={"out": "float, float8 or int8 [T, F]", "scales": "float32[T, G]"},
    reference=reference,
    tolerance={
        "float32": 2e-6, "float16": 1e-3, "bfloat16": 5e-3, "int8": 1e-2,
        "float8_e4m3fn": 1e-2, "float8_e4m3fnuz": 1e-2,
    },
    cases=cases,
    triton_kernels=(
        "pumice.operators.activation_mul.triton_plan:ActivationTiles",
        "pumice.operators.activation_mul.triton_plan:ActivationLoop",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip
