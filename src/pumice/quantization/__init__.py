"""Room: quantization."""
