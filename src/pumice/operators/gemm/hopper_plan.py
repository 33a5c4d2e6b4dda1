"""Launches of `gemm` by the warp-specialized kernel."""

from __future__ import annotations

from pumice.operators.gemm.hopper_triton import gemm_specialized
from pumice.operators.gemm.specialized import Specialized


class GemmSpecialized(Specialized):
    """16-bit floats. Of float16 nobody has checked the numbers on a device yet."""

    name = "gemm.triton.specialized"
    dtypes = ("bfloat16",)
    tiles = ((256, 4), (192, 5), (128, 6))
    kernel = gemm_specialized
