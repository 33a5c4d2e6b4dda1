"""Quantization of activations to 8 bits, and back."""
