"""Launches of `gemm_fp8_block` by the warp-specialized kernel."""

from __future__ import annotations

from pumice.operators.gemm.specialized import Specialized
from pumice.operators.gemm_fp8_block.hopper_triton import fp8_block_specialized
from pumice.operators.gemm_fp8_block.triton_plan import check_blocks, scale_strides
from pumice.operators.triton.plan import Problem


class BlockSpecialized(Specialized):
    """Sums leave the matrix unit, and are scaled, after every block of K."""

    name = "gemm_fp8_block.triton.specialized"
    dtypes = ("float8_e4m3fn",)
    tiles = ((256, 4), (192, 5), (128, 6))
    blocks = 128
    step = 256  # of an odd number of blocks nobody has checked the numbers on a device yet
    kernel = fp8_block_specialized

    def check(self, problem: Problem) -> str | None:
        return check_blocks(problem)

    def arguments(self, problem: Problem) -> dict[str, int]:
        return scale_strides(problem)
