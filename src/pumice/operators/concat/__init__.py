"""Concatenation of columns."""
