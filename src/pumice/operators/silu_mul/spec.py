"""silu_mul: silu(gate) · up, the gated activation of a feed-forward block (SwiGLU,
arXiv:2002.05202).

attrs: I (width of gate and of up); quantize (bool) with sum_group as in rms_norm. Gate is in
columns 0 … I−1, up in I … 2I−1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.operators.base import OperatorSpec
from pumice.operators.quantized import output


def reference(
    attrs: Mapping[str, Any], inputs: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    x = inputs["gate_up"].astype(np.float64)
    gate, up = x[:, : attrs["I"]], x[:, attrs["I"] :]
    return output(attrs, gate / (1.0 + np.exp(-gate)) * up)


def cases(rng: np.random.Generator) -> list[tuple[dict[str, Any], dict[str, np.ndarray]]]:
    """Odd widths, no rows, one row, gates at both ends of the sigmoid."""
    found: list[tuple[dict[str, Any], dict[str, np.ndarray]]] = []
    for tokens, width in ((5, 123), (0, 64), (1, 1536), (4, 1536), (3, 7), (33, 96)):
        for quantize in (False, True):
            if quantize and width % 32:
                continue
            x = rng.standard_normal((tokens, 2 * width), dtype=np.float32) * np.float32(3)
            if tokens > 1:
                x[0, :4] = (90.0, -90.0, 200.0, -200.0)
            attrs: dict[str, Any] = {"I": width}
            if quantize:
                attrs |= {
                    "quantize": True,
                    "group": 32,
                    "sum_group": 16 if tokens % 2 else 32,
                    "planes": 1 + tokens % 3 % 2,
                }
            found.append((attrs, {"gate_up": x}))
    return found


SPEC = OperatorSpec(
    name="silu_mul",
    formula="out[t, i] = g / (1 + exp(−g)) · u with g = gate_up[t, i], u = gate_up[t, I + i]",
    axes={"T": "tokens", "I": "width"},
    inputs={"gate_up": "float32[T, 2I]"},
    outputs={"out": "float32[T, I]"},
    reference=reference,
    tolerance={"float32": 1e-6},
    cases=cases,
    kernels=("pumice.operators.silu_mul.kernel_tir:SiluMul",),
)
