"""Root mean square normalization."""
