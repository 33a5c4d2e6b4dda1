"""Launches of `batched_gemm`: those of `gemm`, with batches along the grid's second axis."""

from __future__ import annotations

from pumice.operators.gemm.family import SplitK, Tiled
from pumice.operators.gemm.triton_plan import Dense, DenseVector


class BatchedTiled(Dense, Tiled):
    name = "batched_gemm.triton.tiled"
    rank = 3


class BatchedSplitK(Dense, SplitK):
    name = "batched_gemm.triton.split_k"
    rank = 3


class BatchedVector(DenseVector):
    name = "batched_gemm.triton.gemv"
    rank = 3
