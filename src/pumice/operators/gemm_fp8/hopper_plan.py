"""Launches of `gemm_fp8` and `gemm_int8` by the warp-specialized kernel of 8-bit values."""

from __future__ import annotations

from pumice.operators.gemm_fp8.triton_plan import check_scales
from pumice.operators.gemm_fp8_block.hopper_plan import Specialized8
from pumice.operators.triton.plan import Problem


class WholeScales(Specialized8):
    """Scales apply to whole sums."""

    def check(self, problem: Problem) -> str | None:
        return check_scales(problem)

    def strides(self, problem: Problem) -> dict[str, int]:
        return {"stride_sm": 0, "stride_sk": 0, "stride_tn": 0, "stride_tk": 0}


class Fp8Specialized(WholeScales):
    """Every block's sums leave the matrix unit, but with fast_accum."""

    name = "gemm_fp8.triton.specialized"
    dtypes = ("float8_e4m3fn",)

    def sums(self, problem: Problem) -> dict[str, bool]:
        return {"BLOCKS": False, "PROMOTE": not problem.attrs.get("fast_accum", False)}


class Int8Specialized(WholeScales):
    """Sums are exact, and stay."""

    name = "gemm_int8.triton.specialized"
    dtypes = ("int8",)

    def sums(self, problem: Problem) -> dict[str, bool]:
        return {"BLOCKS": False, "PROMOTE": False}
