"""Softmax of rows on GPUs."""
