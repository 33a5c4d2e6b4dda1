"""Weight formats: the table, NumPy packing and unpacking, and the layouts that kernels read."""

from __future__ import annotations

from pumice.quantization.base import AffineWeight, PackedLayout, QuantFormat
from pumice.quantization.formats import FORMATS, by_gguf_type, get_format

__all__ = ["FORMATS", "AffineWeight", "PackedLayout", "QuantFormat", "by_gguf_type", "get_format"]
