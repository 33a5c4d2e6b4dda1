"""Pumice compiles open language models for the hardware people already own, and runs them fast."""

from __future__ import annotations

from pumice._version import __version__

__all__ = ["__version__"]
