"""Which packed layout a target's matmul kernels read."""

from __future__ import annotations

from pumice.quantization.base import PackedLayout, QuantFormat
from pumice.targets import Target


def layout_for(target: Target, fmt: QuantFormat) -> PackedLayout:
    """Rows interleaved so that one vector register holds one 32-bit lane (4 codes, or one float)
    a row.
    """
    return PackedLayout(rows=max(target.lanes, 8) if target.api == "cpu" else 8)
