"""gemm_int8: 8-bit integers with a scale per tensor, or per token and channel."""
