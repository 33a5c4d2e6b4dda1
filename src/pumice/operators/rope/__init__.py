"""Rotary position embedding and the cache append."""
