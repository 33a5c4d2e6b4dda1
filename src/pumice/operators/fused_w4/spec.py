"""fused_w4: a product with 4-bit weights for few tokens, and what stands beside it in a layer.

    a   = rms(x) · norm_weight rounded to `dtype`, where norm_weight is given, else x
    y   = a · dequantize(w)ᵀ (+ bias)
    out = silu(y[:, :N/2]) · y[:, N/2:]  with attr activation "silu";  residual += y where given;
          else y

attrs: group, zero, packing ("rows") as in gemm_w4; eps and dtype with norm_weight; activation;
out_dtype (default: the type of a).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.activation_mul.spec import activate
from pumice.operators.base import OperatorSpec
from pumice.operators.gemm_w4.spec import LLAMA2_7B, dense_weight, make_weight, weight_specs
from pumice.operators.triton.plan import Problem, TensorSpec, Work

Case = tuple[dict[str, Any], dict[str, np.ndarray]]


def activation_dtype(attrs: Mapping[str, Any], x_dtype: str) -> str:
    """The type in which activations meet the weights."""
    return str(attrs["dtype"]) if x_dtype == "float32" else x_dtype


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    dtype = activation_dtype(attrs, inputs["x"].dtype.name)
    x = inputs["x"].astype(np.float64)
    if "norm_weight" in inputs:
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + attrs["eps"])
        x = x * inputs["norm_weight"].astype(np.float64)
        x = x.astype(np.float32).astype(numpy_dtype(dtype)).astype(np.float64)
    y = x @ dense_weight(attrs, inputs).T
    if "bias" in inputs:
        y = y + inputs["bias"].astype(np.float64)
    if "residual" in inputs:
        return {"residual": (inputs["residual"].astype(np.float64) + y).astype(np.float32)}
    if attrs.get("activation"):
        width = y.shape[1] // 2
        y = activate(str(attrs["activation"]), y[:, :width]) * y[:, width:]
    out_dtype = numpy_dtype(str(attrs.get("out_dtype", dtype)))
    return {"out": y.astype(np.float32).astype(out_dtype)}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    if "residual" in specs:
        return {"residual": specs["residual"]}
    x, n = specs["x"], specs["w"].shape[0]
    dtype = str(attrs.get("out_dtype", activation_dtype(attrs, x.dtype)))
    return {"out": TensorSpec((x.shape[0], n // 2 if attrs.get("activation") else n), dtype)}


def work(problem: Problem) -> Work:
    """Every tensor once, the residual twice."""
    (m, k), n = problem["x"].shape, problem["w"].shape[0]
    nbytes = sum(spec.nbytes for spec in problem.tensors.values())
    if "residual" in problem:
        nbytes += problem["residual"].nbytes
    return Work(nbytes, 2.0 * m * n * k, activation_dtype(problem.attrs, problem["x"].dtype))


def cases(rng: np.random.Generator) -> list[Case]:
    """Every prologue with every epilogue, odd rows, K that is no multiple of a slice, no tokens,
    activations beyond a float16 sum."""
    found: list[Case] = []
    half, brain = "float16", "bfloat16"
    for m, n, k, group, kind, dtype, *parts in (
        (1, 5, 32, 32, "", half),
        (0, 8, 128, 32, "", half, "residual"),
        (1, 37, 2080, 32, "", half, "residual"),
        (1, 38, 1152, 32, "", half, "norm", "silu"),
        (1, 19, 1056, 32, "", half, "norm", "bias"),
        (3, 19, 352, 32, "", brain, "residual", "bias"),
        (2, 12, 384, 128, "zeros", half, "norm", "bias"),
        (3, 10, 256, 128, "zeros", brain, "norm", "silu"),
        (4, 21, 96, 32, "", half, "norm", "float32"),
        (1, 26, 224, 32, "mins", half, "silu", "bias"),
        (2, 17, 320, 64, "mins", half, "residual"),
        (1, 9, 160, 32, "mins", brain, "norm", "float32"),
        (8, 13, 128, 64, "zeros", half),
        (5, 7, 96, 32, "", half, "residual"),
    ):
        x = rng.standard_normal((m, k))
        if m:
            x[0, :: max(k // 7, 1)] *= 300  # outliers, as down projections have them
        attrs: dict[str, Any] = {"group": group, "zero": 7, "packing": "rows"}
        inputs: dict[str, np.ndarray] = {"x": x.astype(numpy_dtype(dtype))}
        if "norm" in parts:
            attrs |= {"eps": 1e-5, "dtype": dtype}
            inputs["x"] = x.astype(np.float32)
            inputs["norm_weight"] = rng.uniform(0.5, 1.5, k).astype(np.float32)
        inputs |= make_weight(rng, n, k, group, kind)
        if kind == "mins":
            attrs["zero"] = 0
        if "bias" in parts:
            inputs["bias"] = rng.standard_normal(n).astype(numpy_dtype(dtype))
        if "residual" in parts:
            inputs["residual"] = rng.standard_normal((m, n)).astype(np.float32)
        if "silu" in parts:
            inputs["scales"] = (inputs["scales"] / 16).astype(np.float16)  # gates around 0
            if kind == "mins":
                inputs["mins"] = (inputs["mins"] / 16).astype(np.float16)
            attrs["activation"] = "silu"
        if "float32" in parts:
            attrs["out_dtype"] = "float32"
        found.append((attrs, inputs))
    return found


def bench_problem(
    m: int, n: int, k: int, *parts: str, group: int = 32, offset: str = "", dtype: str = "float16"
) -> Any:
    """(label, attrs, input specs) of a row of BENCH. parts: "norm", "silu", "residual"."""
    attrs: dict[str, Any] = {"group": group, "packing": "rows"}
    attrs["zero"] = 0 if offset == "mins" else 7
    inputs = {"x": TensorSpec((m, k), dtype), **weight_specs(n, k, group, offset)}
    if "norm" in parts:
        attrs |= {"eps": 1e-5, "dtype": dtype}
        inputs |= {"x": TensorSpec((m, k), "float32"), "norm_weight": TensorSpec((k,), "float32")}
    if "residual" in parts:
        inputs["residual"] = TensorSpec((m, n), "float32")
    if "silu" in parts:
        attrs["activation"] = "silu"
    named = "+".join(parts) or "alone"
    label = f"{named} {m}x{n}x{k} g{group}{f' {offset}' if offset else ''} {dtype}"
    return label, attrs, inputs


def _layer(m: int, hidden: int, qkv: int, ffn: int, attention: int = 0, **options: Any) -> Any:
    """The four products of a decoder layer, as the compiler fuses them."""
    return (
        bench_problem(m, qkv, hidden, "norm", **options),
        bench_problem(m, hidden, attention or hidden, "residual", **options),
        bench_problem(m, 2 * ffn, hidden, "norm", "silu", **options),
        bench_problem(m, hidden, ffn, "residual", **options),
    )


BENCH = (
    *_layer(1, 4096, 12288, 11008),  # Llama-2-7B
    bench_problem(1, 32000, 4096, "norm"),
    bench_problem(1, 22016, 4096, "silu"),
    *(bench_problem(1, n, k) for n, k in LLAMA2_7B),  # against gemm_w4's rows of these sizes
    *_layer(1, 4096, 6144, 14336),  # Llama-3-8B
    *_layer(1, 5120, 15360, 13824),  # Llama-2-13B
    *_layer(1, 4096, 12288, 11008, offset="mins"),  # q4_1, q4_k
    *(row for m in (2, 4) for row in _layer(m, 4096, 12288, 11008)),
    *(bench_problem(m, n, 4096) for m in (2, 4, 8) for n in (12288, 22016)),
    *(bench_problem(m, 22016, 4096, "silu") for m in (2, 4, 8, 16, 32, 64)),
    *(
        bench_problem(m, n, k, "silu")
        for m in (8, 32, 64)
        for n, k in ((28672, 4096), (27648, 5120))
    ),
    bench_problem(8, 4096, 4096, "residual"),
)

SPEC = OperatorSpec(
    name="fused_w4",
    formula="residual += or out = [silu(gate) · up of] (rms(x) · norm_weight or x) · wᵀ + bias",
    axes={"M": "tokens", "N": "outputs", "K": "inputs", "G": "groups along K", "O": "N or N/2"},
    inputs={
        "x": "float[M, K]: 16 bits, or float32 where norm_weight is",
        "norm_weight": "float32[K] (optional)", "w": "int32[N, K/8]", "scales": "float16[N, G]",
        "zeros": "uint8[N, G] (optional)", "mins": "float16[N, G] (optional)",
        "bias": "16-bit float [N] (optional)",
        "residual": "float32[M, N] (optional, changed in place)",
    },
    outputs={"out": "out_dtype [M, O]; absent with residual"},
    reference=reference,
    tolerance={"float16": 2e-3, "bfloat16": 6e-3, "float32": 3e-3},
    cases=cases,
    triton_kernels=(
        "pumice.operators.fused_w4.triton_plan:Persistent",
        "pumice.operators.fused_w4.ring:Ring",
        "pumice.operators.fused_w4.hopper:FusedStream",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip
