"""Products with 8-bit weights and 16-bit activations on GPUs."""
