"""Rotary position embedding fused with head normalization and the paged cache's append."""
