"""Rows of an embedding table on GPUs."""
