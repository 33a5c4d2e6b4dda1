"""gemm_fp8: 8-bit floats with a scale per tensor, or per token and channel."""
