"""batched_gemm: one dense product a batch."""
