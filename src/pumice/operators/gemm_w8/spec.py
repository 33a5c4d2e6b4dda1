"""gemm_w8: x · (code · scale)ᵀ (+ bias) with int8 weights and 16-bit activations.

attrs: group (of codes along K that share a scale: a multiple of 32, or K for one a row). Codes that
a format stores as unsigned (q8f16: 128 is zero) are given less 128. out_dtype (default: that of x;
"float32" for logits).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.triton.plan import Problem, TensorSpec, Work

Case = tuple[dict[str, Any], dict[str, np.ndarray]]


def dense_weight(attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """float64[N, K]: (code − zero) · scale − min."""
    group = int(attrs["group"])
    weight = inputs["w"].astype(np.float64) - int(attrs.get("zero", 0))
    weight *= np.repeat(inputs["scales"].astype(np.float64), group, axis=1)
    if "mins" in inputs:
        weight -= np.repeat(inputs["mins"].astype(np.float64), group, axis=1)
    return weight


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    out = inputs["x"].astype(np.float64) @ dense_weight(attrs, inputs).T
    if "bias" in inputs:
        out = out + inputs["bias"].astype(np.float64)
    dtype = numpy_dtype(str(attrs.get("out_dtype", inputs["x"].dtype.name)))
    return {"out": out.astype(np.float32).astype(dtype)}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    x = specs["x"]
    shape = (x.shape[0], specs["w"].shape[0])
    return {"out": TensorSpec(shape, str(attrs.get("out_dtype", x.dtype)))}


def work(problem: Problem) -> Work:
    (m, k), n = problem["x"].shape, problem["w"].shape[0]
    nbytes = sum(spec.nbytes for spec in problem.tensors.values())
    return Work(nbytes, 2.0 * m * n * k, problem["x"].dtype)


def cases(rng: np.random.Generator) -> list[Case]:
    """Odd rows, K that is no multiple of a block, no tokens, one scale a row."""
    found: list[Case] = []
    half, brain = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
    for m, n, k, group, bias, dtype, *out_dtype in (
        (1, 5, 32, 32, False, half),
        (0, 8, 64, 32, False, half),
        (1, 37, 1120, 32, True, half),
        (3, 19, 352, 32, False, brain),
        (2, 12, 384, 128, True, half),
        (5, 9, 160, 160, False, brain),
        (17, 67, 288, 288, True, half),
        (33, 33, 384, 64, False, brain),
        (2, 21, 288, 32, True, half, "float32"),
        (3, 17, 256, 64, False, brain, "float32"),
    ):
        inputs = {
            "x": rng.standard_normal((m, k)).astype(dtype),
            "w": rng.integers(-127, 128, (n, k), np.int8),
            "scales": ((rng.random((n, k // group)) + 0.5) / 64).astype(np.float16),
        }
        if bias:
            inputs["bias"] = rng.standard_normal(n).astype(dtype)
        attrs = {"group": group} | ({"out_dtype": out_dtype[0]} if out_dtype else {})
        found.append((attrs, inputs))
    return found


def bench_problem(m: int, n: int, k: int, group: int = 32, dtype: str = "float16") -> Any:
    """(label, attrs, input specs) of a row of BENCH."""
    inputs = {
        "x": TensorSpec((m, k), dtype), "w": TensorSpec((n, k), "int8"),
        "scales": TensorSpec((n, k // group), "float16"),
    }  # fmt: skip
    return f"{m}x{n}x{k} g{group} {dtype}", {"group": group}, inputs


# Llama-2-7B: q·k·v, o, gate·up, down.
LLAMA2_7B = ((12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008))
BENCH = (
    *(bench_problem(1, n, k) for n, k in LLAMA2_7B),
    *(bench_problem(1, n, k, k, "bfloat16") for n, k in LLAMA2_7B),
    *(bench_problem(m, 22016, 4096) for m in (4, 16, 64, 1024)),
)

SPEC = OperatorSpec(
    name="gemm_w8",
    formula="out[m, n] = Σₖ x[m, k] · w[n, k] · scales[n, k / group] + bias[n]",
    axes={"M": "tokens", "N": "outputs", "K": "inputs", "G": "groups along K"},
    inputs={
        "x": "float16 or bfloat16 [M, K]", "w": "int8[N, K]", "scales": "float16[N, G]",
        "bias": "as x, [N] (optional)",
    },
    outputs={"out": "out_dtype [M, N]"},
    reference=reference,
    tolerance={"float16": 1.5e-3, "bfloat16": 6e-3, "float32": 3e-3},
    cases=cases,
    triton_kernels=(
        "pumice.operators.gemm_w8.triton_plan:Gemv",
        "pumice.operators.gemm_w8.triton_plan:Tiled",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip
