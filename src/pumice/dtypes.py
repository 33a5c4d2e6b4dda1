"""Element types by name, with their sizes. A name is what NumPy or ml_dtypes calls the type."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from pumice.errors import UnsupportedError

_NUMPY: dict[str, np.dtype] = {
    name: np.dtype(name)
    for name in (
        "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
        "float16", "float32", "float64",
    )
}  # fmt: skip
for _name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"):
    _NUMPY[_name] = np.dtype(getattr(ml_dtypes, _name))

# What Triton calls them.
TRITON_NAMES: dict[str, str] = {
    "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32",
    "int64": "i64", "uint64": "u64", "float16": "fp16", "bfloat16": "bf16", "float32": "fp32",
    "float64": "fp64", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
    "float8_e4m3fnuz": "fp8e4b8", "float8_e5m2fnuz": "fp8e5b16",
}  # fmt: skip


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name; bfloat16 and 8-bit floats are ml_dtypes'."""
    try:
        return _NUMPY[name]
    except KeyError:
        raise UnsupportedError(
            f"element type {name!r} is unknown; known: {', '.join(_NUMPY)}"
        ) from None


def itemsize(name: str) -> int:
    """Bytes an element takes."""
    return numpy_dtype(name).itemsize
