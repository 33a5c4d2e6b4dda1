"""linear: out = x·Wᵀ (+ bias) (+ residual).

With int8 activations the reference takes the quantized activation's own value (codes · scales): a
kernel is judged on its arithmetic, not on the rounding of its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.base import OperatorSpec


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """inputs: x float[T, K] (dequantized), weight float[N, K] (dequantized), bias [N]?, residual
    [T, N]?
    """
    out = inputs["x"].astype(np.float64) @ inputs["weight"].astype(np.float64).T
    if "bias" in inputs:
        out = out + inputs["bias"]
    if "residual" in inputs:
        out = out + inputs["residual"]
    return {"out": out}


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """No token, one, primes, a last partial tile; outputs that fill no row block; one to many
    groups.
    """
    out = []
    for n, k in ((1, 32), (7, 96), (123, 64), (24, 576), (97, 160)):
        for tokens in (0, 1, 2, 3, 5, 16, 17, 67):
            bias, residual = bool((n + tokens) % 2), bool((n * tokens) % 3 == 0)
            inputs = {
                "x": rng.standard_normal((tokens, k), dtype=np.float32),
                "weight": rng.standard_normal((n, k), dtype=np.float32),
            }
            if bias:
                inputs["bias"] = rng.standard_normal(n, dtype=np.float32)
            if residual:
                inputs["residual"] = rng.standard_normal((tokens, n), dtype=np.float32)
            out.append(({"N": n, "K": k, "bias": bias, "residual": residual}, inputs))
    return out


SPEC = OperatorSpec(
    name="linear",
    formula="out[t, n] = Σ_k x[t, k]·W[n, k] (+ bias[n]) (+ residual[t, n])",
    axes={"T": "tokens", "N": "outputs", "K": "inputs"},
    inputs={
        "x": "float32[T, K], or codes, scales and sums (`operators/quantized.py`)",
        "weight": "any format[N, K]",
        "bias": "float32[N]",
        "residual": "float32[T, N]",
    },
    outputs={"out": "float32[T, N]"},
    reference=reference,
    tolerance={"int8": 2e-6, "float32": 2e-6},
    cases=cases,
    kernels=(
        "pumice.operators.linear.kernel_tir_int8:LinearInt8",
        "pumice.operators.linear.kernel_tir_float:LinearFloat",
    ),
)
