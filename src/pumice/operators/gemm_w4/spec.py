"""gemm_w4: x · dequantize(w)ᵀ (+ bias) with 4-bit weights and 16-bit activations.

attrs: group (of codes along K that share a scale: a multiple of 32); zero (the code of weight 0
where no `zeros` are given: 7 for q4f16_1, 8 for symmetric GPTQ; default 0); packing, "rows" (the
default) or "blocks", as in `layout.py`; out_dtype (default: that of x; "float32" for logits).

A weight is (code − zero) · scale, with zeros by group where `zeros` are given; or, with `mins`,
code · scale − min: the affine form of `quantization/base.py`, which GGUF's Q4_1 and Q4_K have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.base import OperatorSpec
from pumice.operators.gemm_w4.layout import dequantize, pack
from pumice.operators.triton.plan import Problem, TensorSpec, Work

Case = tuple[dict[str, Any], dict[str, np.ndarray]]


def dense_weight(attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    """float64[N, K]."""
    zeros = inputs.get("zeros", int(attrs.get("zero", 0)))
    packing = str(attrs.get("packing", "rows"))
    return dequantize(inputs["w"], inputs["scales"], zeros, packing, inputs.get("mins"))


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


def make_weight(
    rng: np.random.Generator, n: int, k: int, group: int, offset: str = "", packing: str = "rows"
) -> dict[str, np.ndarray]:
    """Random packed weights of about unit variance. offset: "zeros", "mins", or "" for one zero."""
    found = {"w": pack(rng.integers(0, 16, (n, k), np.uint8), packing)}
    scales = (rng.random((n, k // group)) + 0.5) / 4
    found["scales"] = scales.astype(np.float16)
    if offset == "zeros":
        found["zeros"] = rng.integers(0, 17, (n, k // group), np.uint8)
    if offset == "mins":  # from a group of weights above 0 to one below
        found["mins"] = (scales * rng.uniform(0, 15, scales.shape)).astype(np.float16)
    return found


def cases(rng: np.random.Generator) -> list[Case]:
    """Odd rows, K that is no multiple of a block, no tokens, activations beyond a float16 sum."""
    found: list[Case] = []
    half, brain = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
    for m, n, k, group, offset, bias, dtype, packing, *out_dtype in (
        (1, 5, 32, 32, "", False, half, "rows"),
        (0, 8, 128, 32, "", False, half, "blocks"),
        (1, 37, 2080, 32, "", True, half, "rows"),
        (1, 37, 1152, 32, "", True, half, "blocks"),
        (3, 19, 352, 32, "", False, brain, "rows"),
        (3, 19, 640, 32, "", False, brain, "blocks"),
        (2, 12, 384, 128, "zeros", True, half, "blocks"),
        (5, 9, 256, 128, "zeros", False, brain, "rows"),
        (9, 18, 128, 32, "zeros", False, half, "blocks"),
        (17, 67, 288, 32, "", True, half, "rows"),
        (33, 33, 384, 128, "zeros", False, brain, "blocks"),
        (129, 17, 96, 32, "", True, half, "rows"),
        (7, 16, 128, 64, "zeros", False, half, "rows"),
        (4, 33, 256, 64, "zeros", False, half, "blocks"),
        (2, 21, 288, 32, "", True, half, "rows", "float32"),
        (3, 17, 256, 64, "zeros", False, brain, "blocks", "float32"),
        (130, 24, 128, 32, "", True, half, "blocks", "float32"),
        (1, 37, 2080, 32, "mins", True, half, "rows"),
        (3, 19, 352, 32, "mins", False, brain, "rows"),
        (5, 18, 256, 128, "mins", False, half, "rows"),
        (9, 33, 384, 32, "mins", True, half, "blocks"),
        (2, 35, 256, 64, "mins", False, brain, "blocks"),
        (11, 21, 256, 128, "mins", False, half, "blocks"),
        (17, 67, 288, 32, "mins", True, half, "rows", "float32"),
        (130, 24, 128, 64, "mins", False, half, "blocks"),
    ):
        x = rng.standard_normal((m, k))
        if m:
            x[0, :: max(k // 7, 1)] *= 300  # outliers, as down projections have them
        inputs = {"x": x.astype(dtype), **make_weight(rng, n, k, group, offset, packing)}
        if bias:
            inputs["bias"] = rng.standard_normal(n).astype(dtype)
        attrs = {"group": group, "zero": 0 if offset == "mins" else 7, "packing": packing}
        found.append((attrs | ({"out_dtype": out_dtype[0]} if out_dtype else {}), inputs))
    return found


def weight_specs(n: int, k: int, group: int, offset: str = "") -> dict[str, TensorSpec]:
    found = {
        "w": TensorSpec((n, k // 8), "int32"),
        "scales": TensorSpec((n, k // group), "float16"),
    }
    if offset:
        dtype = {"zeros": "uint8", "mins": "float16"}[offset]
        found[offset] = TensorSpec((n, k // group), dtype)
    return found


def bench_problem(
    m: int,
    n: int,
    k: int,
    group: int = 32,
    offset: str = "",
    dtype: str = "float16",
    packing: str = "blocks",
) -> Any:
    """(label, attrs, input specs) of a row of BENCH."""
    inputs = {"x": TensorSpec((m, k), dtype), **weight_specs(n, k, group, offset)}
    label = f"{m}x{n}x{k} g{group}{f' {offset}' if offset else ''} {dtype} {packing}"
    attrs = {"group": group, "zero": 0 if offset == "mins" else 7, "packing": packing}
    return label, attrs, inputs


# Llama-2-7B: q·k·v, o, gate·up, down, head.
LLAMA2_7B = ((12288, 4096), (4096, 4096), (22016, 4096), (4096, 11008), (32000, 4096))
LLAMA3_8B = ((6144, 4096), (28672, 4096), (4096, 14336), (128256, 4096))
LLAMA2_13B = ((15360, 5120), (5120, 5120), (27648, 5120), (5120, 13824))
BENCH = (
    *(bench_problem(1, n, k) for n, k in LLAMA2_7B),
    *(bench_problem(1, n, k, packing="rows") for n, k in LLAMA2_7B),
    *(bench_problem(m, n, k) for m in (4, 8, 16, 64) for n, k in LLAMA2_7B[:4]),
    *(
        bench_problem(m, n, k, packing="rows")
        for m in (2, 4, 8, 16, 32, 64, 128)
        for n, k in LLAMA2_7B
    ),
    *(bench_problem(m, n, k, packing="rows") for m in (512, 2048) for n, k in LLAMA2_7B[:4]),
    *(bench_problem(m, n, k, packing="rows") for m in (8, 32, 64) for n, k in LLAMA3_8B),
    *(bench_problem(m, n, k, packing="rows") for m in (8, 32, 64) for n, k in LLAMA2_13B),
    bench_problem(1, 6144, 4096, dtype="bfloat16", packing="rows"),
    *(bench_problem(1, n, k, 128, "zeros", packing="rows") for n, k in LLAMA2_7B[:4]),
    *(bench_problem(1, n, k, 32, "mins", packing="rows") for n, k in LLAMA2_7B[:4]),
    *(bench_problem(m, 22016, 4096, 32, "mins", packing="rows") for m in (4, 64, 1024)),
    bench_problem(16, 22016, 4096, 32, "mins"),
    *(bench_problem(m, 22016, 4096) for m in (2, 32, 256, 1024, 4096)),
    *(bench_problem(1, n, k, 128, "zeros") for n, k in LLAMA2_7B[:4]),
    bench_problem(1, 28672, 4096, 32, "", "bfloat16"),  # Llama-3-8B
    bench_problem(1, 6144, 4096, 32, "", "bfloat16"),
    bench_problem(1, 57344, 8192),  # Llama-3-70B
    bench_problem(16, 57344, 8192, 128, "zeros"),
)

SPEC = OperatorSpec(
    name="gemm_w4",
    formula="out[m, n] = Σₖ x[m, k] · ((code[n, k] − zero) · scale[n, g] − min[n, g]) + bias[n]",
    axes={"M": "tokens", "N": "outputs", "K": "inputs", "G": "groups along K"},
    inputs={
        "x": "float16 or bfloat16 [M, K]", "w": "int32[N, K/8]", "scales": "float16[N, G]",
        "zeros": "uint8[N, G] (optional)", "mins": "float16[N, G] (optional, without zeros)",
        "bias": "any float [N] (optional)",
    },
    outputs={"out": "out_dtype [M, N]"},
    reference=reference,
    tolerance={"float16": 2e-3, "bfloat16": 6e-3, "float32": 3e-3},
    cases=cases,
    triton_kernels=(
        "pumice.operators.gemm_w4.triton_plan:Matrix",
        "pumice.operators.gemm_w4.triton_plan:Gemv",
        "pumice.operators.gemm_w4.hopper:Stream",
        "pumice.operators.gemm_w4.hopper_prompt:Prompt",
        "pumice.operators.gemm_w4.two_step:TwoStepSpecialized",
        "pumice.operators.gemm_w4.two_step:TwoStepStreamed",
        "pumice.operators.gemm_w4.two_step:TwoStep",
        "pumice.operators.gemm_w4.triton_plan:Tiled",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip
