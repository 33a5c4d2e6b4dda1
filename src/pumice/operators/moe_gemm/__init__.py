"""moe_gemm: the experts of a mixture, grouped by expert."""
