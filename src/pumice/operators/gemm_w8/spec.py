"""gemm_w8: x · dequantize(w)ᵀ (+ bias) with 8-bit codes and 16-bit activations.

attrs: group (of codes along K that share a scale: 16, 32, 64 …, or K for one a row); zero (the code
of weight 0, default 0: 128 of q8f16's unsigned codes); out_dtype (default: that of x; "float32" for
logits).

A weight is (code − zero) · scale − min, with `mins` where they are given: the affine form of
`quantization/base.py`. Q8_0, Q5_0, Q3_K and Q6_K of GGUF are symmetric: int8 codes, less their
zero, or the file's unsigned ones and attr zero. Q5_1, Q2_K and Q5_K have minima.
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
    for m, n, k, group, bias, dtype, *options in (
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
        (1, 13, 544, 16, False, half, "wide"),  # as Q6_K
        (7, 22, 96, 16, True, half, "unsigned", "mins"),  # as Q2_K
        (2, 19, 352, 32, False, brain, "mins"),
        (3, 9, 288, 32, False, half, "unsigned"),
        (4, 11, 160, 160, True, half, "unsigned", "mins"),
        (20, 35, 272, 16, False, half, "mins", "wide", "float32"),
        (18, 33, 96, 32, True, brain, "unsigned"),
        (19, 17, 128, 128, False, half, "mins"),
    ):
        signed = "unsigned" not in options
        scales = ((rng.random((n, k // group)) + 0.5) / 64).astype(np.float32)
        scales = scales if "wide" in options else scales.astype(np.float16)
        inputs = {
            "x": rng.standard_normal((m, k)).astype(dtype),
            "w": rng.integers(-127 if signed else 0, 128 if signed else 256, (n, k)).astype(
                np.int8 if signed else np.uint8
            ),
            "scales": scales,
        }
        attrs: dict[str, Any] = {"group": group}
        if "mins" in options:
            inputs["mins"] = (scales * rng.uniform(-90, 90, scales.shape)).astype(scales.dtype)
        elif not signed:
            attrs["zero"] = 128
        if "float32" in options:
            attrs["out_dtype"] = "float32"
        if bias:
            inputs["bias"] = rng.standard_normal(n).astype(dtype)
        found.append((attrs, inputs))
    return found


def bench_problem(
    m: int, n: int, k: int, group: int = 32, dtype: str = "float16", mins: bool = False
) -> Any:
    """(label, attrs, input specs) of a row of BENCH."""
    inputs = {
        "x": TensorSpec((m, k), dtype), "w": TensorSpec((n, k), "int8"),
        "scales": TensorSpec((n, k // group), "float16"),
    }  # fmt: skip
    if mins:
        inputs["mins"] = inputs["scales"]
    label = f"{m}x{n}x{k} g{group}{' mins' if mins else ''} {dtype}"
    return label, {"group": group}, inputs


# Llama-2-7B: q·k·v, o, gate·up, down.
LLAMA2_7B = ((12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008))
BENCH = (
    *(bench_problem(1, n, k) for n, k in LLAMA2_7B),
    *(bench_problem(1, n, k, k, "bfloat16") for n, k in LLAMA2_7B),
    *(bench_problem(m, 22016, 4096) for m in (4, 16, 64, 1024)),
    *(bench_problem(m, 22016, 4096, 16) for m in (1, 64, 1024)),  # as Q6_K
    bench_problem(1, 22016, 4096, 32, mins=True),
)

SPEC = OperatorSpec(
    name="gemm_w8",
    formula="out[m, n] = Σₖ x[m, k] · ((w[n, k] − zero) · scales[n, g] − mins[n, g]) + bias[n]",
    axes={"M": "tokens", "N": "outputs", "K": "inputs", "G": "groups along K"},
    inputs={
        "x": "float16 or bfloat16 [M, K]", "w": "int8 or uint8 [N, K]",
        "scales": "float16 or float32 [N, G]", "mins": "as scales, [N, G] (optional)",
        "bias": "any float [N] (optional)",
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
