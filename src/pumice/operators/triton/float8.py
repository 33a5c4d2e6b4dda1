"""Which GPUs convert 8-bit floats by integer operations."""

from __future__ import annotations

from pumice.targets import Target


def bitwise(dtype: str, target: Target) -> bool:
    """Whether kernels convert this type by `float8_triton` and not by Triton's own conversions.

    They do where the GPU has none, and on RDNA: over Triton's conversions its LLVM takes minutes
    where there are many, and aborts once in some hundred kernels.
    """
    if not dtype.startswith("float8"):
        return False
    return target.api == "rocm" and (dtype not in target.dtypes or target.matrix_unit == "wmma")
