"""Activations to int8."""
