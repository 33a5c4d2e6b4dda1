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
_NUMPY["bfloat16"] = np.dtype(ml_dtypes.bfloat16)


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name; `bfloat16` comes from ml_dtypes."""
    try:
        return _NUMPY[name]
    except KeyError:
        raise UnsupportedError(
            f"element type {name!r} is unknown; known: {', '.join(_NUMPY)}"
        ) from None


def itemsize(name: str) -> int:
    """Bytes an element takes."""
    return numpy_dtype(name).itemsize
