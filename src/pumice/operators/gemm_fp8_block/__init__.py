"""gemm_fp8_block: 8-bit floats with block scales, as DeepSeek-V3 ships them."""
