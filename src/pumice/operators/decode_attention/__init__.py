"""Attention of one new token a sequence, its rotation and its append to the cache in one launch."""
