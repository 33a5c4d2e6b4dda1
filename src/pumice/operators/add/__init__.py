"""Elementwise sum."""
