"""8-bit outputs of GPU operators: what their attributes mean, in NumPy.

attrs: quantize "token" (one scale a row) or "group" (one a group of 128 along the row, as
DeepSeek-V3's activations, arXiv:2412.19437 §3.3); absent or None for none. out_dtype "int8" or an
8-bit float. power_of_two: scales rounded up to powers of two (UE8M0, OCP microscaling).

A value is code · scale. scale = max|value| / largest code, at least 1e-10 / largest code; codes are
rounded to nearest even.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pumice.dtypes import numpy_dtype
from pumice.operators.triton.plan import TensorSpec, cdiv
from pumice.targets import Target

GROUP = 128
LEAST = 1e-10  # of max|value|, so that a row of zeros has a scale
LARGEST = {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0}
MODES = {None: 0, "token": 1, "group": 2}  # as the kernels' QUANTIZE


def groups(mode: str | None, width: int) -> int:
    """Scales a row has."""
    return cdiv(width, GROUP) if mode == "group" else 1


def row_outputs(
    attrs: Mapping[str, Any], rows: int, width: int, dtype: str
) -> dict[str, TensorSpec]:
    """Specs of "out" [rows, width] and, when quantized, "scales" [rows, groups] in float32."""
    mode = attrs.get("quantize")
    if mode is None:
        return {"out": TensorSpec((rows, width), dtype)}
    return {
        "out": TensorSpec((rows, width), str(attrs["out_dtype"])),
        "scales": TensorSpec((rows, groups(mode, width)), "float32"),
    }


def scales_of(amax: np.ndarray, dtype: str, power_of_two: bool) -> np.ndarray:
    """max|value| → float32 scales."""
    scales = (np.maximum(amax, LEAST) / LARGEST[dtype]).astype(np.float32)
    if power_of_two:
        mantissa, exponent = np.frexp(scales)
        scales = np.ldexp(np.float32(1), exponent - (mantissa == 0.5)).astype(np.float32)
    return np.asarray(scales)


def to_codes(steps: np.ndarray, dtype: str) -> np.ndarray:
    """value / scale → codes, saturating."""
    clipped = np.clip(steps, -LARGEST[dtype], LARGEST[dtype])
    if dtype == "int8":
        return np.asarray(np.rint(clipped).astype(np.int8))
    return np.asarray(clipped.astype(np.float32).astype(numpy_dtype(dtype)))


def quantize_rows(
    attrs: Mapping[str, Any], values: np.ndarray, dtype: str
) -> dict[str, np.ndarray]:
    """float64 [rows, width] → "out" (of `dtype` when not quantized) and "scales"."""
    mode = attrs.get("quantize")
    if mode is None:
        return {"out": values.astype(np.float32).astype(numpy_dtype(dtype))}
    name, (rows, width) = str(attrs["out_dtype"]), values.shape
    size = GROUP if mode == "group" else max(width, 1)
    count = groups(mode, width)
    padded = np.zeros((rows, count * size))
    padded[:, :width] = values
    blocks = padded.reshape(rows, count, size)
    scales = scales_of(np.abs(blocks).max(axis=-1), name, bool(attrs.get("power_of_two")))
    codes = to_codes(blocks / scales.astype(np.float64)[..., None], name)
    return {"out": codes.reshape(rows, count * size)[:, :width], "scales": scales}


def dtype_reason(dtype: str, target: Target) -> str | None:
    """Why kernels cannot write this 8-bit type on a target; None when they can.

    AMD: OCP types are converted in software where the device has none; the FNUZ types are those of
    CDNA3. NVIDIA: from Ada on.
    """
    if dtype not in LARGEST:
        return f"output type {dtype} is none of {', '.join(LARGEST)}"
    if dtype == "float8_e4m3fn" and target.api == "cuda" and dtype not in target.dtypes:
        return f"{target.name} has no 8-bit floats; int8 works"
    if dtype == "float8_e4m3fnuz" and (target.api == "cuda" or "float8_e4m3fn" in target.dtypes):
        return f"{target.name} has no FNUZ floats (those are CDNA3's); float8_e4m3fn works"
    return None


def quantize_reason(attrs: Mapping[str, Any], target: Target) -> str | None:
    """Why a quantized output is impossible on a target, or None."""
    mode = attrs.get("quantize")
    if mode not in MODES:
        return f"quantize={mode!r} is none of None, 'token', 'group'"
    return None if mode is None else dtype_reason(str(attrs.get("out_dtype")), target)
