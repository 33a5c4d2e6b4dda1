"""Decode attention over a latent cache, as DeepSeek's models have it."""
