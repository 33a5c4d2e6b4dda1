"""Gated activations on GPUs."""
