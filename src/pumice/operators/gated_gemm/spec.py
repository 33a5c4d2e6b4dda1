"""gated_gemm: activation(x·gateᵀ) · (x·upᵀ), the first half of a gated feed-forward block (GLU
variants, arXiv:2002.05202). w holds the rows of gate, then those of up.

attrs: activation ("silu" by default, "gelu", "gelu_tanh", "relu"); out_dtype. The product is
formed in float32, before rounding. 8-bit floats take block scales as in `gemm_fp8_block`, w_scale
for the rows of w in their order; F must then be a multiple of 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.gemm.spec import TOLERANCE, Cases, activate, work
from pumice.operators.gemm_fp8_block.spec import GROUP, expand
from pumice.operators.gemm_fp8_block.spec import tensors as block_tensors
from pumice.operators.triton.plan import TensorSpec


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    x, w = inputs["x"].astype(np.float64), inputs["w"].astype(np.float64)
    if "x_scale" in inputs:
        x *= expand(inputs["x_scale"], x.shape[0], x.shape[1], 1)
        w *= expand(inputs["w_scale"], w.shape[0], w.shape[1], GROUP)
    width = w.shape[0] // 2
    gate = activate(x @ w[:width].T, str(attrs.get("activation", "silu")))
    return {"out": gate * (x @ w[width:].T)}


def output_specs(
    attrs: Mapping[str, Any], specs: Mapping[str, TensorSpec]
) -> Mapping[str, TensorSpec]:
    x, w = specs["x"], specs["w"]
    default = "bfloat16" if x.dtype.startswith("float8") else x.dtype
    shape = (x.shape[0], w.shape[0] // 2)
    return {"out": TensorSpec(shape, str(attrs.get("out_dtype", default)))}


def cases(rng: np.random.Generator) -> Cases:
    """No row, one row, odd widths, every activation, block scales."""
    found: Cases = []
    for index, (m, f, k) in enumerate(
        ((5, 123, 123), (0, 32, 64), (1, 77, 256), (17, 40, 300), (129, 33, 96), (336, 24, 64))
    ):
        dtype = np.dtype((ml_dtypes.bfloat16, np.float16)[index % 2])
        attrs = {"activation": ("silu", "gelu", "gelu_tanh", "relu")[index % 4]}
        x = rng.standard_normal((m, k), np.float32)
        w = rng.standard_normal((2 * f, k), np.float32) / k**0.5 * 2
        found.append((attrs, {"x": x.astype(dtype), "w": w.astype(dtype)}))
    for m, f, k in ((3, 128, 384), (70, 256, 200)):
        specs = block_tensors(m, 2 * f, k)
        x, w = (rng.standard_normal(specs[name].shape, np.float32) for name in ("x", "w"))
        s, t = (rng.random(specs[f"{name}_scale"].shape, np.float32) / 9 for name in ("x", "w"))
        kind = ml_dtypes.float8_e4m3fn
        found.append(({}, {"x": x.astype(kind), "w": w.astype(kind), "x_scale": s, "w_scale": t}))
    return found


SPEC = OperatorSpec(
    name="gated_gemm",
    formula="out[m, f] = activation(Σ_k x[m, k]·w[f, k]) · Σ_k x[m, k]·w[F + f, k]",
    axes={"M": "rows of x, tokens", "F": "width of gate and of up", "K": "features in"},
    inputs={
        "x": "bfloat16 | float16 | float8_e4m3fn | float8_e4m3fnuz [M, K]", "w": "as x [2F, K]",
        "x_scale": "float32 [M, ceil(K/128)], with 8-bit floats",
        "w_scale": "float32 [2F/128, ceil(K/128)], with 8-bit floats",
    },
    outputs={"out": "out_dtype [M, F]"},
    reference=reference,
    tolerance=TOLERANCE,
    cases=cases,
    triton_kernels=("pumice.operators.gated_gemm.triton_plan:GatedTiled",),
    output_specs=output_specs,
    work=work,
)  # fmt: skip

_WIDTHS = (
    ("Llama-2-7B", 11008, 4096), ("Llama-3-8B", 14336, 4096), ("Llama-3-70B", 28672, 8192),
    ("Qwen3-8B", 12288, 4096),
)  # fmt: skip
BENCH: tuple[tuple[str, Mapping[str, Any], Mapping[str, TensorSpec]], ...] = tuple(
    (f"{label} M={m}", {}, {name: TensorSpec((rows, k), "bfloat16") for name, rows in pair})
    for label, f, k in _WIDTHS
    for m in (1, 16, 64, 512, 4096)
    for pair in [(("x", m), ("w", 2 * f))]
) + tuple(
    (f"DeepSeek-V3 dense M={m}", {}, block_tensors(m, 2 * 18432, 7168)) for m in (16, 512, 4096)
)
