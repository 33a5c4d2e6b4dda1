"""RMSNorm and LayerNorm on GPUs."""
