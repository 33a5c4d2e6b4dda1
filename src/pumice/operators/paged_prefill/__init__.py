"""Attention of chunks of new tokens over a paged cache that already holds their keys and values."""
