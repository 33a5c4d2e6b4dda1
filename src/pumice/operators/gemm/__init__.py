"""gemm: dense matrix products with their epilogue."""
