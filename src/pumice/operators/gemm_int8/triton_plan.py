"""Launches of `gemm_int8`."""

from __future__ import annotations

from pumice.operators.gemm.family import SplitK, StreamK, Tiled
from pumice.operators.gemm_fp8.triton_plan import Scaled, ScaledVector


class _Int8(Scaled):
    dtypes = ("int8",)


class Int8Tiled(_Int8, Tiled):
    name = "gemm_int8.triton.tiled"


class Int8SplitK(_Int8, SplitK):
    name = "gemm_int8.triton.split_k"


class Int8StreamK(_Int8, StreamK):
    name = "gemm_int8.triton.stream_k"


class Int8Vector(ScaledVector):
    name = "gemm_int8.triton.gemv"
    dtypes = ("int8",)
