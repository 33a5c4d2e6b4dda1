"""batched_gemm: out[b] = x[b]·w[b]ᵀ with the epilogue of `gemm`; bias is shared by all batches.

x, w, residual and out may have gaps between rows and between batches: MLA's absorbed projections
pass views whose batch axis lies inside the row. attrs as in `gemm`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.gemm.spec import TOLERANCE, Cases, epilogue
from pumice.operators.triton.plan import Problem, TensorSpec, Work


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    x, w = inputs["x"].astype(np.float64), inputs["w"].astype(np.float64)
    return epilogue(attrs, inputs, x @ w.transpose(0, 2, 1))


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    x, w = specs["x"], specs["w"]
    shape = (x.shape[0], x.shape[1], w.shape[1])
    return {"out": TensorSpec(shape, str(attrs.get("out_dtype", x.dtype)))}


def work(problem: Problem) -> Work:
    batch, m, k = problem["x"].shape
    moved = sum(tensor.nbytes for tensor in problem.tensors.values())
    return Work(moved, 2.0 * batch * m * problem["w"].shape[1] * k, problem["x"].dtype)


def cases(rng: np.random.Generator) -> Cases:
    """No batch, one batch, odd sizes, a row each."""
    found: Cases = []
    for index, (b, m, n, k) in enumerate(
        ((3, 5, 123, 123), (0, 4, 32, 64), (1, 17, 40, 769), (5, 1, 33, 256), (2, 129, 65, 96),
         (2, 8, 48, 1024), (4, 0, 8, 32))
    ):  # fmt: skip
        dtype = np.dtype((ml_dtypes.bfloat16, np.float16)[index % 2])
        inputs = {
            "x": rng.standard_normal((b, m, k), np.float32).astype(dtype),
            "w": rng.standard_normal((b, n, k), np.float32).astype(dtype),
        }
        attrs: dict[str, Any] = {}
        if index % 3 == 2:
            inputs["bias"] = rng.standard_normal(n, np.float32).astype(dtype)
            inputs["residual"] = rng.standard_normal((b, m, n), np.float32).astype(dtype)
            attrs = {"activation": "gelu_tanh", "out_dtype": "float32"}
        found.append((attrs, inputs))
    return found


SPEC = OperatorSpec(
    name="batched_gemm",
    formula="out[b, m, n] = activation(Σ_k x[b, m, k]·w[b, n, k] + bias[n]) + residual[b, m, n]",
    axes={"B": "batches", "M": "rows of x", "N": "rows of w", "K": "summed"},
    inputs={
        "x": "bfloat16 | float16 | float32 [B, M, K]", "w": "as x [B, N, K]",
        "bias": "any float [N], optional", "residual": "any float [B, M, N], optional",
    },
    outputs={"out": "out_dtype [B, M, N]"},
    reference=reference,
    tolerance=TOLERANCE,
    cases=cases,
    triton_kernels=(
        "pumice.operators.batched_gemm.triton_plan:BatchedTiled",
        "pumice.operators.batched_gemm.triton_plan:BatchedSplitK",
        "pumice.operators.batched_gemm.triton_plan:BatchedVector",
    ),
    output_specs=output_specs,
    work=work,
)  # fmt: skip

BENCH: tuple[tuple[str, Mapping[str, Any], Mapping[str, TensorSpec]], ...] = tuple(
    (f"{label} M={m}", {}, {name: TensorSpec((b, rows, k), "bfloat16") for name, rows in pair})
    for label, b, n, k in (
        ("DeepSeek-V3 q absorb", 128, 512, 128),
        ("DeepSeek-V3 v absorb", 128, 128, 512),
        ("16 of 1024", 16, 1024, 1024),
    )
    for m in (1, 16, 128, 1024)
    for pair in [(("x", m), ("w", n))]
)
