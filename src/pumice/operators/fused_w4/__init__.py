"""Products with 4-bit weights for few tokens, with what stands beside them in a layer."""
