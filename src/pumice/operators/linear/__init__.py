"""linear: out = x·Wᵀ (+ bias) (+ residual), with quantized or dense weights."""

from __future__ import annotations

from pumice.operators.linear.layout import layout_for

__all__ = ["layout_for"]
