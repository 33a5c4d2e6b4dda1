"""Attention over ragged batches whose keys and values lie in plain tensors."""
